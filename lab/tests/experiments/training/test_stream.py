"""The order of training: items once per epoch, and texts of like length in one batch where lengths are known."""

import torch

from lln_lab.experiments.training.stream import Lengths, Stream

ITEMS, BATCH = 1_000, 8
LENGTHS = torch.randint(20, 513, (ITEMS,), generator=torch.Generator().manual_seed(0)).tolist()


def order(seed: int, epochs: int = 1, by_length: bool = True) -> list[int]:
    lengths = Lengths(LENGTHS, BATCH) if by_length else None
    stream = Stream(range(ITEMS), lambda item, _: {"item": item}, seed, epochs * ITEMS, lengths)
    return [stream[place]["item"] for place in range(len(stream))]


def padding(items: list[int]) -> float:
    """The share of places in batches that hold no token."""
    batches = [items[i : i + BATCH] for i in range(0, len(items), BATCH)]
    places = sum(len(batch) * max(LENGTHS[item] for item in batch) for batch in batches)
    return 1 - sum(LENGTHS[item] for item in items) / places


def test_every_item_comes_once_per_epoch() -> None:
    first, second = order(0, 2)[:ITEMS], order(0, 2)[ITEMS:]
    assert sorted(first) == sorted(second) == list(range(ITEMS))
    assert first != second


def test_texts_of_like_length_share_a_batch() -> None:
    assert padding(order(0, by_length=False)) > 0.3
    assert padding(order(0)) < 0.05


def test_batches_are_not_in_the_order_of_their_length() -> None:
    items = order(0)
    longest = torch.tensor([max(LENGTHS[item] for item in items[i : i + BATCH]) for i in range(0, 400, BATCH)])
    rising = (longest.diff() > 0).double().mean()
    assert 0.3 < float(rising) < 0.7


def test_the_order_depends_on_the_seed_alone() -> None:
    assert order(3) == order(3)
    assert order(3) != order(4)
