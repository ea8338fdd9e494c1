"""Rows that are drawn, not stored: row i of a split is a pure function of (seed, split, i).

Any process can make any row, in any order, and a resumed run sees what an undisturbed one would have seen. Training and
validation draw from different seed sequences, so no row of one is a row of the other but by chance.
"""

from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from lln_lab.data.task import Rows

SPLITS = {"train": 0, "validation": 1}
Make = Callable[[numpy.random.Generator], dict[str, Any]]


class Generated:
    def __init__(self, make: Make, count: int, seed: int, split: str) -> None:
        if seed < 0:
            raise ValueError(f"the seed must be at least 0; got {seed}")
        self.make, self.count, self.seed, self.split = make, count, seed, split

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -self.count <= index < self.count:
            raise IndexError(f"row {index} of {self.count}")
        return self.make(numpy.random.default_rng((self.seed, SPLITS[self.split], index % self.count)))


def splits(make: Make, seed: int, train: int, validation: int) -> tuple[Rows, Rows]:
    return Generated(make, train, seed, "train"), Generated(make, validation, seed, "validation")


def ids(values: numpy.ndarray) -> Tensor:
    """(N,) int64, as embeddings take them."""
    return torch.from_numpy(values.astype(numpy.int64))
