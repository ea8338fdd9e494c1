"""Documents stay whole, whatever the layout."""

from pathlib import Path

import pytest

import lln_lab.data
from lln_lab.data.corpus import documents

ARTICLES = " \n = One = \n \n First line . \n = 1 = \n = = Part = = \n \n More . \n \n = Two = \n \n x = 1 = y \n"


def test_articles_are_cut_at_headings_only() -> None:
    one, two = documents(ARTICLES.splitlines(keepends=True))
    assert one.startswith("= One =") and "= = Part = =" in one and "More ." in one
    assert two.startswith("= Two =") and "x = 1 = y" in two


def test_text_without_headings_is_cut_at_blank_lines() -> None:
    assert documents(["a\n", "b\n", "\n", "\n", "c\n"]) == ["a\nb\n", "c\n"]
    assert documents([]) == []


@pytest.mark.parametrize("names", [("train.txt", "valid.txt"), ("wiki.train.tokens", "wiki.valid.tokens")])
@pytest.mark.parametrize("folder", [".", "wikitext-103"])
def test_wikitext_files(tmp_path: Path, names: tuple[str, str], folder: str) -> None:
    place = tmp_path / folder
    place.mkdir(exist_ok=True)
    for name in names:
        (place / name).write_text(ARTICLES, encoding="utf-8")
    data = lln_lab.data.load("wikitext", source=tmp_path)
    assert len(data.train) == len(data.validation) == 2
    assert data.train[1]["text"].startswith("= Two =")
    assert list(data.files) == list(names) and data.source == str(place)


def test_a_folder_of_texts_holds_out_every_twentieth(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_text(f"text {number}\n\nsecond part")
    data = lln_lab.data.load("wikitext", source=tmp_path)
    assert [row["text"].split()[1] for row in data.validation] == ["0", "20"]  # type: ignore[attr-defined]
    assert len(data.train) == 38 and data.train[0]["text"] == "text 1\n\nsecond part"


def test_the_standard_library_is_split_by_module() -> None:
    data = lln_lab.data.load("wikitext")
    training = {row["text"] for row in data.train}  # type: ignore[attr-defined]
    assert len(training) > 50 and not any(row["text"] in training for row in data.validation)  # type: ignore[attr-defined]
    assert any("def dataclass(" in text for text in training)


@pytest.mark.parametrize("names", [("train.txt", "valid.txt"), ("a.txt", "b.txt")])
def test_text_that_is_not_utf_8_is_refused_by_name(tmp_path: Path, names: tuple[str, str]) -> None:
    (tmp_path / names[0]).write_text("fine")
    (tmp_path / names[1]).write_bytes("schön".encode("latin-1"))
    with pytest.raises(ValueError, match=rf"{names[1]} is not UTF-8 \(the byte 0xf6"):
        lln_lab.data.load("wikitext", source=tmp_path)


@pytest.mark.parametrize(
    ("names", "split"), [(("valid.txt", "train.txt"), "validate"), (("a.txt", "b.txt"), "train on")]
)
def test_a_split_without_text_is_refused(tmp_path: Path, names: tuple[str, str], split: str) -> None:
    (tmp_path / names[0]).write_text(" \n")
    (tmp_path / names[1]).write_text("text")
    with pytest.raises(ValueError, match=rf"wikitext has no rows to {split} in .*{names[0]}"):
        lln_lab.data.load("wikitext", source=tmp_path)
