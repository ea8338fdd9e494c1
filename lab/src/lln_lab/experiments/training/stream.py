"""The samples of a whole run as one long sequence, each a pure function of the seed and its place in the run.

    sample t of the run  =  make(item pi_e(t mod n), generator(seed, e, item)),    epoch e = t div n

with pi_e the epoch's permutation of the n items. Nothing is drawn from a global generator, so a run that goes on from a
checkpoint, or is spread over processes, sees what an undisturbed run sees: masks, crops and order included.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset

Make = Callable[[Any, torch.Generator], dict[str, Any]]


def generator_for(*key: int) -> torch.Generator:
    """A generator of its own for every key: neighbouring keys have nothing in common."""
    seed = numpy.random.SeedSequence([part & 0xFFFFFFFF for part in key]).generate_state(1, numpy.uint64)[0]
    return torch.Generator().manual_seed(int(seed))


class Stream(Dataset[dict[str, Any]]):
    """`samples` samples of a run over `items`, in the order of training. Read it in sequence."""

    def __init__(self, items: Sequence[Any], make: Make, seed: int, samples: int) -> None:
        if len(items) == 0:
            raise ValueError("the training set is empty")
        self.items, self.make, self.seed, self.samples = items, make, seed, samples
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, place: int) -> dict[str, Any]:
        epoch, within = divmod(place, len(self.items))
        if epoch != self._epoch:
            order = generator_for(self.seed, epoch)
            self._epoch, self._order = epoch, torch.randperm(len(self.items), generator=order)
        item = int(self._order[within])
        return self.make(self.items[item], generator_for(self.seed, epoch, item + 1))


class Held(Dataset[dict[str, Any]]):
    """The validation items, each made once and always the same way."""

    def __init__(self, items: Sequence[Any], make: Make) -> None:
        self.items, self.make = items, make

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, item: int) -> dict[str, Any]:
        return self.make(self.items[item], generator_for(item))
