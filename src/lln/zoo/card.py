"""What a member is and what it supports, as data. The documentation, the tests and the benchmark read it."""

from dataclasses import dataclass
from typing import Literal

Growth = Literal["linear", "n log n", "quadratic"]


@dataclass(frozen=True)
class Card:
    """What a member is and what it can do."""

    name: str
    title: str
    reference: str
    equation: str
    time: str
    memory: str
    growth: Growth
    bidirectional: bool = True  # is_causal=False is supported
    causal: bool = False  # is_causal=True is supported: no output depends on a later position
    cross: bool = False  # keys and values may come from another sequence
    fixed_length: bool = False  # has weights for every position up to max_length
    dense: bool = False  # has a matrix with out = matrix @ v
    deterministic: bool = True  # no random numbers besides the initial weights
    learned: bool = False  # has weights of its own, so it is not just a function of q, k and v
    equivariant: bool = False  # permuting the sequence permutes the output
    replaces_feed_forward: bool = False
    departures: str = ""
    reproduced: str = ""  # what its paper says of it that a test shows here


def refuse_unsupported(card: Card, is_causal: bool, cross: bool) -> None:
    """Raise for what the member's mathematics does not allow."""
    if is_causal and not card.causal:
        raise ValueError(f"{card.name} has no causal form: an output would depend on later positions")
    if cross and not card.cross:
        raise ValueError(f"{card.name} needs queries and keys of one sequence: it has no cross-attention")
    if not is_causal and not card.bidirectional:
        raise ValueError(f"{card.name} has only a causal form: pass is_causal=True")
