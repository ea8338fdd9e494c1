"""The samples of a whole run as one long sequence, each a pure function of the seed and its place in the run.

    sample t of the run  =  make(item pi_e(t mod n), generator(seed, e, item)),    epoch e = t div n

with pi_e the epoch's permutation of the n items. Where the lengths of texts are known, pi_e puts those of like length into one
batch, so that less of it is padding, and the batches are in random order again. Nothing is drawn from a global generator, so a
run that goes on from a checkpoint, or is spread over processes, sees what an undisturbed run sees: masks, crops and order
included.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset

Make = Callable[[Any, torch.Generator], dict[str, Any]]
WINDOW = 64  # batches: enough for texts of like length to meet, few enough for an epoch to stay mixed


def generator_for(*key: int) -> torch.Generator:
    """A generator of its own for every key: neighbouring keys have nothing in common."""
    seed = numpy.random.SeedSequence([part & 0xFFFFFFFF for part in key]).generate_state(1, numpy.uint64)[0]
    return torch.Generator().manual_seed(int(seed))


class Lengths(NamedTuple):
    """The length of every item, and how many items are a batch."""

    of_items: Sequence[int]
    batch: int


def alike_in_batches(order: Tensor, lengths: Lengths, random: torch.Generator) -> Tensor:
    """The same items, sorted by length inside windows of WINDOW batches and cut into batches, whose order is drawn."""
    batches = []
    for window in order.split(WINDOW * lengths.batch):
        by_length = torch.tensor([lengths.of_items[int(item)] for item in window]).argsort(stable=True)
        batches += list(window[by_length].split(lengths.batch))
    whole, rest = [b for b in batches if len(b) == lengths.batch], [b for b in batches if len(b) < lengths.batch]
    drawn = [whole[int(i)] for i in torch.randperm(len(whole), generator=random)]
    return torch.cat([*drawn, *rest])  # what does not fill a batch comes last, so that no batch is torn


class Stream(Dataset[dict[str, Any]]):
    """`samples` samples of a run over `items`, in the order of training. Read it in sequence."""

    def __init__(
        self, items: Sequence[Any], make: Make, seed: int, samples: int, lengths: Lengths | None = None
    ) -> None:
        if len(items) == 0:
            raise ValueError("the training set is empty")
        self.items, self.make, self.seed, self.samples, self.lengths = items, make, seed, samples, lengths
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, place: int) -> dict[str, Any]:
        epoch, within = divmod(place, len(self.items))
        if epoch != self._epoch:
            order = generator_for(self.seed, epoch)
            self._epoch, self._order = epoch, torch.randperm(len(self.items), generator=order)
            if self.lengths is not None:
                self._order = alike_in_batches(self._order, self.lengths, order)
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
