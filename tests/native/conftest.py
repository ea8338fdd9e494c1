"""Native tests run over every instruction set that this machine has."""

import os
from collections.abc import Iterator

import pytest
import torch

from lln.ops.native.call import available
from lln.ops.native.library import library

INSTRUCTION_SETS = list(library().usable) if available() is None else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = available()
    for item in items:
        if reason is not None and "native/" in item.nodeid and "test_build" not in item.nodeid:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(params=INSTRUCTION_SETS or ["none"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = os.environ.get("LLN_NATIVE_ISA")
    os.environ["LLN_NATIVE_ISA"] = request.param
    yield request.param
    os.environ.pop("LLN_NATIVE_ISA")
    if before is not None:
        os.environ["LLN_NATIVE_ISA"] = before


@pytest.fixture
def threads() -> Iterator[None]:
    """Tests that change the number of threads leave it as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
