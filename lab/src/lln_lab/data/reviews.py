"""lra/text: sentiment of film reviews, byte by byte. Rows {"input_ids", "label"}, label 1 positive, byte b is id b + 1."""

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy

from lln_lab.data import hub, long_texts
from lln_lab.data.files import checksums, first_file, locate, places, utf8_of
from lln_lab.data.generated import ids, splits
from lln_lab.data.missing import missing
from lln_lab.data.ragged import Ragged, ragged
from lln_lab.data.task import TaskData

FOLDERS = ("imdb", "aclImdb", "imdb/aclImdb")
OPENERS: dict[str, Callable[..., IO[str]]] = {".xz": lzma.open, ".gz": gzip.open, ".jsonl": open}
VOCABULARY = 257
LAYOUTS = "train.jsonl and test.jsonl (also .xz, .gz) with label and text, or aclImdb's train/pos/*.txt and so on"
Texts = tuple[list[bytes], list[int]]


@dataclass(frozen=True)
class Reviews:
    length: int = 1024  # at most so many bytes, from the start; the Long Range Arena takes 4,096

    name: ClassVar[str] = "lra/text"

    def embedded(self, seed: int) -> TaskData:
        train, validation = splits(self._row, seed, 25_000, 2_000)
        source = "embedded (generated, not IMDb: long texts, the majority of their opinions)"
        return TaskData(self.name, source, train, validation, 2, VOCABULARY)

    def directory(self, folder: Path, cache: Path) -> TaskData:
        """The test reviews validate, as in the Long Range Arena."""
        place, paths = locate(folder, FOLDERS, lambda at: _jsonl(at) or _folders(at))
        if place is None or paths is None:
            get = "the Large Movie Review data set (aclImdb_v1.tar.gz), or source='hub'"
            raise missing(self.name, places(folder, FOLDERS), LAYOUTS, get)
        files = checksums(place, [path for part in paths for path in part])
        train, validation = (self._cached(place, part, files, cache) for part in paths)
        return TaskData(self.name, str(place), train, validation, 2, VOCABULARY, files)

    def hub(self, repository: str | None) -> TaskData:
        repository = repository or "stanfordnlp/imdb"
        parts = hub.load_splits(self.name, repository, None, "train", "test")
        hub.check_columns(self.name, parts[0], "text", "label")
        train, validation = (HubBytes(part, self.length) for part in parts)
        return TaskData(self.name, f"hub:{repository}", train, validation, 2, VOCABULARY)

    def _cached(self, place: Path, part: list[Path], files: dict[str, str], cache: Path) -> Ragged:
        sums = "-".join(files[path.relative_to(place).as_posix()][:24] for path in part)
        return Ragged(ragged(cache, f"reviews-{sums}", lambda: _read(part)), self.length, shift=1)

    def _row(self, random: numpy.random.Generator) -> dict[str, Any]:
        label = int(random.integers(2))
        text = long_texts.review(random, bool(label), self.length)
        return {"input_ids": ids(numpy.frombuffer(text, dtype=numpy.uint8)) + 1, "label": label}


class HubBytes:
    """A `datasets.Dataset` with the columns text and label, as bytes."""

    def __init__(self, table: Any, length: int) -> None:
        self.table, self.length = table, length

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.table[index]
        text = numpy.frombuffer(row["text"].encode()[: self.length], dtype=numpy.uint8)
        return {"input_ids": ids(text) + 1, "label": int(row["label"])}


def _jsonl(folder: Path) -> tuple[list[Path], list[Path]] | None:
    train, test = (first_file(folder, (f"{split}.jsonl{e}" for e in ("", ".xz", ".gz"))) for split in ("train", "test"))
    return ([train], [test]) if train and test else None


def _folders(folder: Path) -> tuple[list[Path], list[Path]] | None:
    train, test = ([folder / split / kind for kind in ("neg", "pos")] for split in ("train", "test"))
    return (train, test) if all(path.is_dir() for path in train + test) else None


def _read(part: list[Path]) -> Texts:
    found = list(_read_jsonl(part[0]) if len(part) == 1 else _read_folders(part))
    if not found:
        raise ValueError(f"no reviews found in {' and '.join(map(str, part))}; expected: {LAYOUTS}")
    return [text for text, _ in found], [label for _, label in found]


def _read_folders(folders: list[Path]) -> Iterator[tuple[bytes, int]]:
    for label, folder in enumerate(folders):
        for path in sorted(folder.glob("*.txt")):
            yield path.read_bytes(), label


def _read_jsonl(path: Path) -> Iterator[tuple[bytes, int]]:
    try:
        with utf8_of(path), OPENERS[path.suffix](path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield _review(line, f"{path}, line {number}")
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as reason:
        raise ValueError(f"{path} is truncated or damaged: {reason}. Download it again") from reason


def _review(line: str, where: str) -> tuple[bytes, int]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as reason:
        raise ValueError(f"{where} is not JSON ({reason})") from reason
    fields = row if isinstance(row, dict) else {}
    if absent := [name for name in ("text", "label") if name not in fields]:
        has = ", ".join(fields) or "no fields"
        raise ValueError(f"{where} has {has}, but no {' and no '.join(absent)}; expected: {LAYOUTS}")
    text, label = row["text"], row["label"]
    if not isinstance(text, str) or label not in (0, 1, "0", "1"):
        raise ValueError(f"{where}: text must be a string and label 0 or 1; got {type(text).__name__} and {label!r}")
    return text.encode(), int(label)
