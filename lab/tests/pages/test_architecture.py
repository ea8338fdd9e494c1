"""docs/architecture.md tells the truth: its index of the paper resolves, and its walk is the one that a call takes."""

import ast
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import lln
from lln_lab.pages.architecture import items, page

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGE = (DOCS / "architecture.md").read_text()

# What the paper (arXiv 2311.13541) numbers.
NUMBERED = [
    *(f"eq. {n}" for n in range(1, 35)),
    *("Proposition 3.1", "Proposition 4.1", "Theorem 3.2", "Theorem 3.3", "Theorem 3.4", "Theorem A.3"),
    *("Lemma A.1", "Lemma A.2", "Lemma A.4"),
    *(f"Table {n}" for n in range(1, 6)),
    *(f"Figure {n}" for n in range(1, 11)),
]
ITEMS = items(DOCS)
COMPUTED = [entry for entry in ITEMS if "only_in_a_proof" not in entry]


def test_the_table_on_the_page_is_the_index() -> None:
    assert page(DOCS) == PAGE, "run: python -m lln_lab.pages.architecture docs"


def test_everything_the_paper_numbers_is_in_the_index_once() -> None:
    assert sorted(entry["item"] for entry in ITEMS) == sorted(NUMBERED)


def test_what_is_only_in_a_proof_has_its_reason() -> None:
    for entry in ITEMS:
        assert entry.get("symbols") or len(entry["only_in_a_proof"].split()) > 3, entry["item"]
        assert not entry["item"].startswith(("Table", "Figure", "Theorem", "Proposition")) or "symbols" in entry


@pytest.mark.parametrize("entry", COMPUTED, ids=lambda entry: entry["item"])
def test_every_symbol_of_the_index_is_there(entry: dict[str, Any]) -> None:
    for symbol in entry["symbols"]:
        module, _, name = symbol.partition(":")
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        assert callable(found), symbol


@pytest.mark.parametrize("entry", [e for e in COMPUTED if "shown_by" in e], ids=lambda entry: entry["item"])
def test_every_test_of_the_index_is_there(entry: dict[str, Any]) -> None:
    for shown in entry["shown_by"]:
        path, _, name = shown.partition("::")
        functions = {n.name for n in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(n, ast.FunctionDef)}
        assert name in functions, shown


def told(heading: str) -> list[str]:
    """The files that the page names under a heading."""
    section = PAGE.split(f"### {heading}\n")[1].split("\n#")[0]
    return re.findall(r"^\| `(src/lln/\S+)`", section, flags=re.MULTILINE)


def passed(call: Callable[[], Any]) -> list[str]:
    """The library's files in which `call` runs a function, in the order in which they come."""
    library, found = Path(lln.__file__).parent, dict[str, None]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(library):
            found[f"src/lln/{file.relative_to(library)}"] = None

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


@pytest.fixture
def call() -> Callable[[], torch.Tensor]:
    from lln.ops.diag import diag

    if diag.backends["native"].unavailable() is not None:
        pytest.skip("the page tells the walk to the native kernel, which is not built here")
    q, k, v = torch.randn(3, 1, 2, 130, 16).requires_grad_().unbind(0)

    def run() -> torch.Tensor:
        return lln.lln_diag_attention(q, k, v, 1.0, 1.0)

    run().sum().backward()  # what happens once, such as loading the kernel, is no part of the walk
    return run


def test_the_walk_forward_is_the_one_on_the_page(call: Callable[[], torch.Tensor]) -> None:
    assert sorted(passed(call)) == sorted(told("Forward"))


def test_the_walk_back_is_the_one_on_the_page(call: Callable[[], torch.Tensor]) -> None:
    assert sorted(passed(call().sum().backward)) == sorted(told("Back"))


def test_a_call_passes_at_most_eight_files(call: Callable[[], torch.Tensor]) -> None:
    assert len(passed(call)) <= 8
    assert len(passed(call().sum().backward)) <= 8
