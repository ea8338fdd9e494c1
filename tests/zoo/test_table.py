"""docs/zoo.md is what the registry and the results say."""

from pathlib import Path

import lln.zoo
from lln.zoo.table import markdown, page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_in_the_docs_is_up_to_date() -> None:
    assert (DOCS / "zoo.md").read_text() == page(DOCS), "run: python -m lln.zoo.table docs"


def test_every_member_has_its_rows() -> None:
    text = markdown()
    for name in lln.zoo.names():
        assert text.count(f"| `{name}` |") == 4
