"""Tokens taken back out of a state: what it was before each recent piece, and how to go on from there to a place inside it.

A state is a sum, and no token can be subtracted from it. But the state before a piece is still there, and the first tokens of
the piece can be added to it once more. Assisted decoding and prompt lookup propose tokens and take back those that were wrong.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

PIECES = 64  # that can be taken back: more than any assistant proposes one by one
NOT_RECORDED = (
    "a linear attention's past is a sum: tokens can be taken out of it only where it was asked to remember what it was before. "
    "Call cache.activate_past_recording() before those tokens come; generate() does for assisted decoding and prompt lookup"
)


@dataclass(frozen=True)
class Before:
    """What a layer was before a piece of tokens, and a function that adds the piece's first tokens again."""

    seen: int
    state: Any
    full: Tensor | None
    again: Callable[[int, Any, Tensor | None], tuple[Any, Tensor | None]]  # tokens, state and full before -> both after


class History:
    """The last pieces of a layer."""

    def __init__(self) -> None:
        self.pieces: deque[Before] = deque(maxlen=PIECES)

    def add(self, piece: Before) -> None:
        self.pieces.append(piece)

    def clear(self) -> None:
        self.pieces.clear()

    def back_to(self, seen: int) -> tuple[Any, Tensor | None]:
        """State and full after `seen` tokens. What came later is forgotten."""
        while self.pieces and self.pieces[-1].seen > seen:
            self.pieces.pop()
        if not self.pieces:
            raise ValueError(f"{NOT_RECORDED}; the last {PIECES} pieces are kept")
        last = self.pieces[-1]
        if last.seen == seen:
            self.pieces.pop()
            return last.state, last.full
        return last.again(seen - last.seen, last.state, last.full)
