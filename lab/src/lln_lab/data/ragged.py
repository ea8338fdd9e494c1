"""Sequences of different lengths as one run of bytes and the places where they end, kept in the cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from lln_lab.data.cache import Arrays, cached
from lln_lab.data.generated import ids


def ragged(cache: Path, key: str, read: Callable[[], tuple[list[bytes], list[int]]]) -> Arrays:
    """Of `read() -> (sequences, labels)`: the arrays "flat" (total,), "ends" (N,) and "labels" (N,)."""

    def make() -> Arrays:
        sequences, labels = read()
        ends = numpy.cumsum([len(sequence) for sequence in sequences], dtype=numpy.int64)
        flat = numpy.frombuffer(b"".join(sequences), dtype=numpy.uint8)
        return {"flat": flat, "ends": ends, "labels": numpy.array(labels, dtype=numpy.int64)}

    return cached(cache, key, make)


class Ragged:
    """Rows {"input_ids", "label"}: the first `length` of each sequence. `shift` makes room for padding where bytes are text."""

    def __init__(self, arrays: Arrays, length: int, shift: int = 0) -> None:
        self.flat, self.ends, self.labels = arrays["flat"], arrays["ends"], arrays["labels"]
        self.length, self.shift = length, shift

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        end = int(self.ends[index])  # raises IndexError past the end, where iteration stops
        index %= len(self)
        start = int(self.ends[index - 1]) if index else 0
        tokens = self.flat[start : min(end, start + self.length)]
        return {"input_ids": ids(tokens) + self.shift, "label": int(self.labels[index])}
