"""Who watches attention while it happens.

Every attention function tells each observer which operation it computes ("attention", "blocks", "diag" or "near_far"; of a
step from a state "diag_step" or "near_far_step") and on which operands, so that instruments see every call, by whatever name
the function was imported. Compiled graphs do not tell. What an attention is computed by is nobody's business: inside,
`is_inside` says so to those who watch torch's functions.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

Observer = Callable[[str, Any], None]
observers: list[Observer] = []

UNWATCHED: AbstractContextManager[None] = nullcontext()  # around an operation while there are no observers
_depth = 0


def watched(operation: str, operands: Any) -> AbstractContextManager[None]:
    """Around the computation of an operation: tells the observers of it."""
    if not observers or torch.compiler.is_compiling():
        return UNWATCHED
    return _telling(operation, operands)


def unwatched() -> AbstractContextManager[None]:
    """Around what is computed for looking at, which is no attention of its own."""
    return _inside() if observers and not torch.compiler.is_compiling() else UNWATCHED


def is_inside() -> bool:
    return _depth > 0


@contextmanager
def _telling(operation: str, operands: Any) -> Iterator[None]:
    if not is_inside():
        for observer in tuple(observers):
            observer(operation, operands)
    with _inside():
        yield


@contextmanager
def _inside() -> Iterator[None]:
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
