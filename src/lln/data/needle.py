"""needle: one marked value somewhere in noise, asked for at the end.

    noise … MARK value … noise … ASK
    labels -100 but at ASK, where the label is the value's id

The noise holds values too, so only the mark tells which one counts.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy

from lln.data.generated import ids, splits
from lln.data.recall import IGNORED
from lln.data.task import TaskData

MARK, ASK, FIRST_VALUE = 1, 2, 3


@dataclass(frozen=True)
class Needle:
    length: int = 1024
    values: int = 32

    name: ClassVar[str] = "needle"

    def __post_init__(self) -> None:
        if self.length < 3 or self.values < 2:
            raise ValueError(f"a needle needs a length of 3 and 2 values; given {self.length} and {self.values}")

    def embedded(self, seed: int) -> TaskData:
        train, validation = splits(self._row, seed, 100_000, 1_000)
        source = f"embedded (generated: one marked value in {self.length} tokens)"
        return TaskData(self.name, source, train, validation, vocabulary=FIRST_VALUE + self.values)

    def directory(self, folder: Path, cache: Path) -> TaskData:
        raise ValueError("needle is generated: it takes no source")

    def hub(self, repository: str | None) -> TaskData:
        raise ValueError("needle is generated: it takes no source")

    def _row(self, random: numpy.random.Generator) -> dict[str, Any]:
        tokens = random.integers(FIRST_VALUE, FIRST_VALUE + self.values, self.length)
        at = int(random.integers(self.length - 2))
        tokens[at], tokens[-1] = MARK, ASK
        labels = numpy.full(self.length, IGNORED)
        labels[-1] = tokens[at + 1]
        return {"input_ids": ids(tokens), "labels": ids(labels)}
