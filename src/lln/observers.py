"""Observers of attention calls.

Every attention function notifies each observer of the operation it computes ("attention", "blocks", "diag" or "near_far";
"diag_step" or "near_far_step" for a step from a state) and of its operands. Instruments thus see every call, under whatever
name the function was imported. Compiled graphs do not notify. `is_inside` is true while an attention is being computed, so
that observers of torch's own functions can ignore what happens inside it.
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
    """A context for the computation of an operation, which notifies the observers."""
    if not observers or torch.compiler.is_compiling():
        return UNWATCHED
    return _telling(operation, operands)


def unwatched() -> AbstractContextManager[None]:
    """A context for what is computed for inspection only, which is not reported."""
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
