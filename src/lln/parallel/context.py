"""Inside this context, tensors are a stretch of a sequence."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from lln.ops import stretches
from lln.parallel.positions import check_positions
from lln.parallel.processes import GroupLike, Processes

_known: dict[Any, Processes] = {}  # one description a group, so that what was agreed on is remembered


@contextmanager
def context_parallel(group: GroupLike, *, positions: Tensor | None = None, check: bool = True) -> Iterator[None]:
    """Every attention function, `match_moments`, `MomentMatcher` and layer inside treats its tensors as this process's
    stretch of a sequence that the processes of `group` hold together, rank after rank.

    Outputs, gradients and matched alpha and beta are those of one process with the whole sequence. Stretches may have any
    length, also none. `key_mask` is that of the stretch, `cu_seqlens` that of the whole; alpha, beta, feature bias, mix and
    `state` are the same on every process, and the gradient that each gets of them is its part: sum them once, as data
    parallelism does (`sum_gradients`). All processes must make the same calls.

    group: a `torch.distributed` process group, or one dimension of a `DeviceMesh` (mesh["sequence"]).
    positions: the positions of the tokens here, if they are to be checked: they must follow one another in the order of ranks.
    check: compare every call with those of the other processes, a small exchange beside the local work, and raise where they
        differ. False: only the first of each kind.

    A backward pass may come after the context, unless checkpointing recomputes attention in it: then call `backward` inside.
    """
    processes = processes_of(group)
    if positions is not None:
        check_positions(processes, positions)
    before, processes.checks = processes.checks, check
    try:
        with stretches.held_by(processes):
            yield
    finally:
        processes.checks = before


def processes_of(group: GroupLike) -> Processes:
    """What is known of the processes of a group."""
    fresh = Processes(group)
    return _known.setdefault(fresh.group, fresh)
