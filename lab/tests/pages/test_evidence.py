"""docs/evidence.md and docs/query-length.md are what the results say."""

import json
from pathlib import Path

from lln_lab.pages import evidence, query_length

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_page_of_evidence_is_up_to_date() -> None:
    told = "run: python -m lln_lab.pages.evidence docs"
    assert (DOCS / "evidence.md").read_text() == evidence.page(DOCS / "results" / "evidence"), told


def test_the_page_on_the_length_of_the_query_is_up_to_date() -> None:
    found = json.loads((DOCS / "results" / "query_length.json").read_text())
    told = "run: python -m lln_lab.pages.query_length docs"
    assert (DOCS / "query-length.md").read_text() == query_length.page(found), told
    assert all(name in found["members"] for name in ("softmax", "lln", "lln_diag", "near_far", "hedgehog", "mala"))
