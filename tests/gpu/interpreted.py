"""A plugin for pytest (`-p tests.gpu.interpreted`): the contract tests under Triton's interpreter, which is slow.

Drawn cases have fewer heads and rows, there are fewer of them (LLN_EXAMPLES), and one that fails is shown as it is. The tests
themselves are those of every backend.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase

from tests.gpu.interpreter import quicken
from tests.ops import cases

EXAMPLES = int(os.environ.get("LLN_EXAMPLES", "10"))
build_any = cases.build


LONGEST = 40  # rows: a stretch of the interpreter's has 32, in tiles of 16


def build_small(case: cases.Case) -> cases.Inputs:
    if hypothesis.currently_in_test_context():
        case = dataclasses.replace(
            case, batch=min(case.batch, 2), key_heads=min(case.key_heads, 2), groups=min(case.groups, 2),
            queries=(case.queries - 1) % LONGEST + 1, keys=(case.keys - 1) % LONGEST + 1,
        )  # fmt: skip
        if case.batch * case.key_heads * case.groups > 2:  # a program for each takes its time
            case = dataclasses.replace(case, batch=1, **{("key_heads", "groups")[case.seed % 2]: 1})
    return build_any(case)


def pytest_configure(config: pytest.Config) -> None:
    quicken()
    cases.build = build_small
    for module in ("triton", "numpy"):  # of NumPy, where a GPU gives inf or NaN
        config.addinivalue_line("filterwarnings", f"ignore::RuntimeWarning:{module}.*")


def with_room(test: Callable[[], None]) -> Callable[[], None]:
    """Call the test from a frame so large that CPython gives it a piece of its stack with room for every frame above.

    Pieces have 16 KiB otherwise and are unmapped when left. A kernel's frames happen to cross a border, and mapping a piece at
    every call took half of the time.
    """

    def call() -> None:
        test()

    call.__code__ = call.__code__.replace(co_stacksize=70_000)
    return call


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        item.runtest = with_room(item.runtest)
        given = getattr(item.obj, "_hypothesis_internal_use_settings", None)
        if given is not None:
            item.obj._hypothesis_internal_use_settings = hypothesis.settings(
                given, max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate]
            )
