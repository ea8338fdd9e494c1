"""Inside this context, tensors are a stretch of a sequence."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from lln.ops import stretches
from lln.parallel.agreement import agree_on_history
from lln.parallel.positions import check_positions
from lln.parallel.processes import GroupLike, Processes

_known: dict[Any, Processes] = {}  # one description a group, so that what was agreed on is remembered


@contextmanager
def context_parallel(group: GroupLike, *, positions: Tensor | None = None) -> Iterator[None]:
    """Every attention function, `match_moments`, `MomentMatcher` and layer inside treats its tensors as this process's
    stretch of a sequence that the processes of `group` hold together, rank after rank.

    Outputs, gradients and matched alpha and beta are those of one process with the whole sequence. Stretches may have any
    length, also none. `key_mask` is that of the stretch, `cu_seqlens` that of the whole; alpha, beta, feature bias, mix and
    `state` are the same on every process, and the gradient that each gets of them is its part: sum them once, as data
    parallelism does (`sum_gradients`). All processes must make the same calls.

    group: a `torch.distributed` process group, or one dimension of a `DeviceMesh` (mesh["sequence"]).
    positions: the positions of the tokens here, if they are to be checked: they must follow one another in the order of ranks.

    A backward pass may come after the context, unless checkpointing recomputes attention in it: then call `backward` inside.
    """
    processes = processes_of(group)
    if positions is not None:
        check_positions(processes, positions)
    processes.called.clear()
    with stretches.held_by(processes):
        yield
    device = torch.device("cpu" if _speaks(processes, "cpu") else torch.accelerator.current_accelerator() or "cpu")
    agree_on_history(processes, device)


def processes_of(group: GroupLike) -> Processes:
    """What is known of the processes of a group."""
    fresh = Processes(group)
    return _known.setdefault(fresh.group, fresh)


def over(group: GroupLike | None) -> Any:
    """For functions with a `group=` argument: that group for one call, or whatever holds around it."""
    return nullcontext() if group is None else stretches.held_by(processes_of(group))


def _speaks(processes: Processes, device: str) -> bool:
    try:
        processes.group._get_backend(torch.device(device))
    except RuntimeError:
        return False
    return True
