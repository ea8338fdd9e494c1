"""Registry through which operations learn that their tensors are one stretch of a sequence held by several processes.

Nothing here communicates. `lln.parallel` says which processes hold the sequence (`held_by`) and provides, for each operation, a
form that works over them (`form_of`); operations called in that context ask for it. Its own work on a process,
`alone`, is done by the ordinary operations.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch

_FORMS: dict[str, Callable[..., Any]] = {}
# The processes that hold the sequence, as `lln.parallel` describes them, or None: this one alone. Not a context variable:
# backward passes, and what they recompute, may run in other threads.
holders: Any = None


@contextmanager
def held_by(processes: Any) -> Iterator[None]:
    """Inside, tensors are this process's stretch of a sequence; None: the whole of it."""
    global holders
    before, holders = holders, processes
    try:
        yield
    finally:
        holders = before


def register(name: str, form: Callable[..., Any]) -> None:
    """`form(processes, *arguments)` computes the operation `name` over the processes."""

    def over_processes(processes: Any, *arguments: Any, **options: Any) -> Any:
        with held_by(None):
            return form(processes, *arguments, **options)

    _FORMS[name] = torch.compiler.disable(over_processes)  # compiled models leave their graph for it


def form_of(name: str) -> Callable[..., Any]:
    """What computes the operation over the processes; only where there are any."""
    return partial(_FORMS[name], holders)


def refuse_stretches(what: str) -> None:
    """Raise where tensors are a stretch of a sequence: `what` would take it for the whole, and be wrong."""
    if holders is not None:
        raise NotImplementedError(
            f"{what} needs the whole sequence, and inside lln.parallel.context_parallel a process has a stretch of it. "
            "lln_attention, lln_diag_attention, near_far_attention, block_diagonal_attention, match_moments and their layers "
            "work there; for anything else join the stretches first (lln.parallel.gather)"
        )


def own_boundaries(cu_seqlens: Any, length: int) -> Any:
    """The boundaries of packed sequences in this process's `length` tokens; as they are where it has the whole."""
    return cu_seqlens if holders is None else form_of("boundaries")(cu_seqlens, length)


def in_the_whole(key_mask: Any, k: Any) -> tuple[Any, int, int]:
    """The mask of the whole sequence, where this process's keys (B, H, N, D) begin in it, and how long it is."""
    if holders is None:
        return key_mask, 0, k.shape[2]
    found: tuple[Any, int, int] = form_of("mask of the whole")(key_mask, k)
    return found


def same_tokens(q: Any, k: Any) -> bool:
    """Whether queries and keys are the same tokens: as many, in the whole sequence."""
    return bool(q.shape[2] == k.shape[2] if holders is None else form_of("same tokens")(q, k))


def sums_of_all(sums: Any) -> Any:
    """Sums over this process's tokens as sums over those of all."""
    return sums if holders is None else form_of("sums")(sums)


def over_group(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """`function` on its own arguments, its tensors a stretch of what their `group` holds."""
    options = {name: value for name, value in arguments.items() if name not in ("group", "refused")} | arguments[
        "refused"
    ]
    # by name, since nobody else needs what it imports
    processes = import_module("lln.parallel.context").processes_of(arguments["group"])
    with held_by(processes):
        return function(**options)
