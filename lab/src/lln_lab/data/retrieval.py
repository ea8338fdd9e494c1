"""lra/retrieval: are two articles related? Rows {"input_ids", "pair_ids", "label"}, byte b is id b + 1."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy

from lln_lab.data import hub, long_texts
from lln_lab.data.cache import Arrays, cached
from lln_lab.data.files import checksums, locate, places
from lln_lab.data.generated import ids, splits
from lln_lab.data.missing import missing
from lln_lab.data.task import TaskData

FOLDERS = ("aan", "tsv_data", "lra_release/lra_release/tsv_data", "lra_release/tsv_data", "lra_release/aan")
VOCABULARY = 257
LABELS = (b"0", b"1", b"0.0", b"1.0")


@dataclass(frozen=True)
class Retrieval:
    length: int = 1024  # of either article, from the start; the Long Range Arena takes 4,000

    name: ClassVar[str] = "lra/retrieval"

    def embedded(self, seed: int) -> TaskData:
        train, validation = splits(self._row, seed, 50_000, 2_000)
        share = f"{100 * long_texts.TOPIC_SHARE:.0f} % of the words from one of {long_texts.TOPICS} topics"
        source = f"embedded (generated, not AAN: two articles with {share}, the same or not)"
        return TaskData(self.name, source, train, validation, 2, VOCABULARY)

    def directory(self, folder: Path, cache: Path) -> TaskData:
        place, paths = locate(folder, FOLDERS, _release)
        if place is None or paths is None:
            layouts = "new_aan_pairs.train.tsv and new_aan_pairs.eval.tsv: label, two ids and two texts, no header"
            raise missing(self.name, places(folder, FOLDERS), layouts, "lra_release.gz of the Long Range Arena")
        files = checksums(place, paths)
        train, validation = (
            Pairs(path, cached(cache, f"pairs-{sha[:32]}", partial(_index, path)), self.length)
            for path, sha in zip(paths, files.values(), strict=True)
        )
        return TaskData(self.name, str(place), train, validation, 2, VOCABULARY, files)

    def hub(self, repository: str | None) -> TaskData:
        raise hub.no_hub(self.name)

    def _row(self, random: numpy.random.Generator) -> dict[str, Any]:
        label = int(random.integers(2))
        topics = random.permutation(long_texts.TOPICS)[:2]
        first, second = (
            numpy.frombuffer(long_texts.article(random, int(topic), self.length), dtype=numpy.uint8)
            for topic in (topics[0], topics[1 - label])
        )
        return {"input_ids": ids(first) + 1, "pair_ids": ids(second) + 1, "label": label}


class Pairs:
    """Rows of a tsv file that stays where it is, mapped: gigabytes in the release."""

    def __init__(self, path: Path, index: Arrays, length: int) -> None:
        self.content = numpy.memmap(path, dtype=numpy.uint8, mode="r")
        self.spans, self.labels, self.length = index["spans"], index["labels"], length

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        first, middle, last = self.spans[index].tolist()
        return {
            "input_ids": ids(self.content[first : min(middle - 1, first + self.length)]) + 1,
            "pair_ids": ids(self.content[middle : min(last, middle + self.length)]) + 1,
            "label": int(self.labels[index]),
        }


def _release(folder: Path) -> tuple[Path, Path] | None:
    train, validation = sorted(folder.glob("*.train.tsv")), sorted(folder.glob("*.eval.tsv"))
    return (train[0], validation[0]) if train and validation else None


def _index(path: Path) -> Arrays:
    """The arrays "spans" (N, 3), where the two texts begin and the line ends, and "labels" (N,)."""
    spans, labels, at = [], [], 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            columns = line.split(b"\t")
            if len(columns) != 5 or columns[0] not in LABELS:
                needed = "a label 0 or 1, two ids and two texts, with tabs between"
                raise ValueError(f"{path}, line {number}: {needed}, are needed; it has {len(columns)} columns")
            label, one, two, text, _ = columns
            first = at + len(label) + len(one) + len(two) + 3
            spans.append((first, first + len(text) + 1, at + len(line.rstrip(b"\r\n"))))
            labels.append(int(float(label)))
            at += len(line)
    if not labels:
        raise ValueError(f"{path} is empty: it has no pair of articles")
    return {"spans": numpy.array(spans, dtype=numpy.int64), "labels": numpy.array(labels, dtype=numpy.int64)}
