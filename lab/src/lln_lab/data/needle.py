"""needle: one marked value somewhere in noise, asked for at the end.

    noise … marked value … noise … ASK
    labels -100 but at ASK, where the label is the value, 0 … values - 1

The noise is made of the same values without the mark.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy

from lln_lab.data.generated import ids, splits
from lln_lab.data.recall import IGNORED
from lln_lab.data.task import TaskData

ASK, FIRST_VALUE = 1, 2


@dataclass(frozen=True)
class Needle:
    length: int = 1024
    values: int = 32

    name: ClassVar[str] = "needle"

    def __post_init__(self) -> None:
        if self.length < 2 or self.values < 2:
            raise ValueError(
                f"a needle needs a length of at least 2 and at least 2 values; got {self.length} and {self.values}"
            )

    @property
    def first_marked(self) -> int:
        return FIRST_VALUE + self.values

    def embedded(self, seed: int) -> TaskData:
        train, validation = splits(self._row, seed, 100_000, 1_000)
        source = f"embedded (generated: one marked value in {self.length} tokens)"
        vocabulary = self.first_marked + self.values
        return TaskData(self.name, source, train, validation, classes=self.values, vocabulary=vocabulary)

    def directory(self, folder: Path, cache: Path) -> TaskData:
        raise ValueError("needle is generated: it takes no source")

    def hub(self, repository: str | None) -> TaskData:
        raise ValueError("needle is generated: it takes no source")

    def _row(self, random: numpy.random.Generator) -> dict[str, Any]:
        tokens = random.integers(FIRST_VALUE, self.first_marked, self.length)
        at, value = int(random.integers(self.length - 1)), int(random.integers(self.values))
        tokens[at], tokens[-1] = self.first_marked + value, ASK
        labels = numpy.full(self.length, IGNORED)
        labels[-1] = value
        return {"input_ids": ids(tokens), "labels": ids(labels)}
