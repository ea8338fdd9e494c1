"""The API reference has every public name, once, and no other."""

import re

import pytest

from tests.public import PACKAGES, ROOT, names

PAGES = {package: f"reference/{package.split('.')[-1]}.md" for package in PACKAGES}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    text = (ROOT / "docs" / PAGES[package]).read_text()
    told = re.findall(rf"^::: {re.escape(package)}\.(\w+)$", text, flags=re.MULTILINE)
    assert text.count(":::") == len(told)
    # a number has no docstring: the version is told in words
    assert sorted(told) == sorted(set(names(package)) - {"__version__"})
    assert ("__version__" in names(package)) == (f"`{package}.__version__`" in text)


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    there = sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    assert sorted(re.findall(r"\S+\.md", navigation)) == there
