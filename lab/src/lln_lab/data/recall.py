"""recall: associative recall. Pairs of a key and its value among noise, then all keys again, each asking for its value.

    noise … (key, value) … noise … (key, value) … | key key key …
    labels -100 but at the keys of the last part, where the label is the value, 0 … symbols - 1

A pair is one token, so that a single attention can find it: what is asked is to pick one token among many, not to learn which
tokens stand beside each other. Keys are different from each other within a row; values repeat. Bidirectional and causal models
can both do it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy

from lln_lab.data.generated import ids, splits
from lln_lab.data.task import TaskData

IGNORED = -100
NOISE_TOKENS = 8  # ids from 1; then the keys that ask, then the pairs


@dataclass(frozen=True)
class Recall:
    length: int = 256
    pairs: int = 4
    symbols: int = 8  # different keys, and as many values

    name: ClassVar[str] = "recall"

    def __post_init__(self) -> None:
        if not 1 <= self.pairs <= self.symbols or self.length < 2 * self.pairs:
            raise ValueError(
                f"{self.pairs} pairs need a length of {2 * self.pairs} and {self.pairs} symbols; "
                f"given length {self.length} and {self.symbols} symbols"
            )

    @property
    def first_key(self) -> int:
        return 1 + NOISE_TOKENS

    @property
    def first_pair(self) -> int:
        return self.first_key + self.symbols

    def embedded(self, seed: int) -> TaskData:
        train, validation = splits(self._row, seed, 100_000, 1_000)
        source = f"embedded (generated: {self.pairs} pairs in {self.length} tokens)"
        vocabulary = self.first_pair + self.symbols**2
        return TaskData(self.name, source, train, validation, classes=self.symbols, vocabulary=vocabulary)

    def directory(self, folder: Path, cache: Path) -> TaskData:
        raise ValueError("recall is generated: it takes no source")

    def hub(self, repository: str | None) -> TaskData:
        raise ValueError("recall is generated: it takes no source")

    def _row(self, random: numpy.random.Generator) -> dict[str, Any]:
        told = self.length - self.pairs
        tokens = random.integers(1, 1 + NOISE_TOKENS, self.length)
        keys = random.permutation(self.symbols)[: self.pairs]
        values = random.integers(0, self.symbols, self.pairs)
        tokens[random.permutation(told)[: self.pairs]] = self.first_pair + self.symbols * keys + values
        asked = random.permutation(self.pairs)
        tokens[told:] = self.first_key + keys[asked]
        labels = numpy.full(self.length, IGNORED)
        labels[told:] = values[asked]
        return {"input_ids": ids(tokens), "labels": ids(labels)}
