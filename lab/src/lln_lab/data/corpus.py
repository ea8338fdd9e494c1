"""wikitext: documents for pre-training, kept whole. Rows {"text"}."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lln_lab.data import hub, standard_library
from lln_lab.data.files import checksums, first_file, locate, places, read_utf8, utf8_of
from lln_lab.data.missing import missing
from lln_lab.data.task import TaskData

ENDINGS = ("{}.txt", "{}.tokens", "{}.raw", "wiki.{}.tokens", "wiki.{}.raw")
FOLDERS = ("wikitext", "wikitext-103", "wikitext-103-raw", "wikitext103", "wikitext-2", "wikitext-2-raw", "wikitext2")
HEADING = re.compile(r" ?= [^=].* = ?")
HELD_OUT = 20  # where there is no validation file, every twentieth document


@dataclass(frozen=True)
class Corpus:
    """A text corpus in WikiText's layout, or any folder of .txt files; the default is the sources of Python's library."""

    config: str = "wikitext-103-raw-v1"  # on the hub

    name: ClassVar[str] = "wikitext"

    def embedded(self, seed: int) -> TaskData:
        modules = standard_library.documents()
        train, validation = _hold_out(list(modules.values()))
        checksum = {"*.py": standard_library.checksum()}
        source = f"embedded (sources of the standard library of Python {standard_library.VERSION})"
        return self._data(source, train, validation, checksum)

    def directory(self, folder: Path, cache: Path) -> TaskData:
        place, files = locate(folder, FOLDERS, _split_files)
        if place is not None and files is not None:
            train, validation = (documents(_lines(path)) for path in files)
            return self._data(str(place), train, validation, checksums(place, files))
        texts = sorted(folder.glob("*.txt"))
        if len(texts) < 2:
            layouts = "train.txt and valid.txt, or wiki.train.tokens and wiki.valid.tokens, or two and more .txt files"
            raise missing(
                self.name, places(folder, FOLDERS), layouts, "WikiText-103 or WikiText-2, or any text of yours"
            )
        train, validation = _hold_out([text for text in map(read_utf8, texts) if text.strip()])
        return self._data(str(folder), train, validation, checksums(folder, texts))

    def hub(self, repository: str | None) -> TaskData:
        repository = repository or "Salesforce/wikitext"
        train, validation = hub.load_splits(self.name, repository, self.config, "train", "validation")
        hub.check_columns(self.name, train, "text")
        return self._data(f"hub:{repository}", documents(train["text"]), documents(validation["text"]), {})

    def _data(self, source: str, train: list[str], validation: list[str], files: dict[str, str]) -> TaskData:
        return TaskData(self.name, source, _rows(train), _rows(validation), files=files)


def documents(lines: Iterable[str]) -> list[str]:
    """Articles, from one heading ` = Title = ` to the next; where nothing looks like one, what blank lines part."""
    lines = [line.rstrip("\n") for line in lines]
    blank = [not line.strip() for line in lines] + [
        True
    ]  # so that there is a blank line before the first, at -1, and after the last
    starts = [i for i, line in enumerate(lines) if HEADING.fullmatch(line) and blank[i - 1] and blank[i + 1]]
    if starts:
        starts[0] = 0  # what stands before the first heading belongs to the first article
    else:
        starts = [i for i in range(len(lines)) if not blank[i] and blank[i - 1]]
    pieces = ("\n".join(lines[start:end]).strip() for start, end in zip(starts, [*starts[1:], None], strict=False))
    return [piece + "\n" for piece in pieces if piece]


def _split_files(folder: Path) -> tuple[Path, Path] | None:
    train = first_file(folder, (ending.format("train") for ending in ENDINGS))
    names = (ending.format(split) for split in ("valid", "validation", "dev") for ending in ENDINGS)
    validation = first_file(folder, names)
    return (train, validation) if train and validation else None


def _lines(path: Path) -> list[str]:
    with utf8_of(path), path.open(encoding="utf-8", newline="\n") as file:
        return list(file)


def _hold_out(texts: list[str]) -> tuple[list[str], list[str]]:
    validation = texts[::HELD_OUT]
    return [text for i, text in enumerate(texts) if i % HELD_OUT], validation


def _rows(texts: list[str]) -> list[dict[str, Any]]:
    return [{"text": text} for text in texts]
