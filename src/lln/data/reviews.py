"""lra/text: sentiment of film reviews, byte by byte. Rows {"input_ids", "label"}, label 1 positive, byte b is id b + 1."""

import gzip
import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy

from lln.data import hub, long_texts
from lln.data.files import checksums, first_file, locate, places
from lln.data.generated import ids, splits
from lln.data.missing import missing
from lln.data.ragged import Ragged, ragged
from lln.data.task import TaskData

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
    if len(part) == 1:
        with OPENERS[part[0].suffix](part[0], "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return [row["text"].encode() for row in rows], [int(row["label"]) for row in rows]
    found = [(path.read_bytes(), label) for label, folder in enumerate(part) for path in sorted(folder.glob("*.txt"))]
    return [text for text, _ in found], [label for _, label in found]
