"""docs/zoo.md is what the registry and the results say."""

from pathlib import Path

import lln.zoo
from lln_lab.pages.zoo import markdown, page

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_in_the_docs_is_up_to_date() -> None:
    assert (DOCS / "zoo.md").read_text() == page(DOCS), "run: python -m lln_lab.pages.zoo docs"


def test_every_member_has_its_rows() -> None:
    text = markdown()
    for name in lln.zoo.names():
        assert text.count(f"| `{name}` |") == 4
