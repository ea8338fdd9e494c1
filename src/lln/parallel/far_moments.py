"""Moments of far keys, of several stretches, merged: what near-far attention exchanges besides rows.

A line is a run of positions whose blocks count from one origin: samples of a batch whose first key is at the same place, or
a packed sequence. For every line that it has a part of, a process sends two sets of moments (`lln.ops.near_far.moments`);
causal, the first one:

    of the keys from where its own far past ends to where that of the next process does
    of the keys from where the far future of the process before begins to where its own does

The first sets of the processes before make up a process's far past, the second sets of those after it its far future. They are
merged in the order of ranks, in float64. Backward, every process sends the gradient of what it has read, and each finds its own
part of it. In both directions a set has 2 D Dv + 4 D + Dv + 1 float64 numbers per sample and key head.
"""

from typing import Any

import torch
from torch import Tensor

from lln.ops.near_far.moments import Moments, merged
from lln.parallel.processes import Processes

Places = list[dict[int, slice]]  # of each process: which rows of what it sends are of which line


def flat(moments: Moments) -> Tensor:
    """(R, Hk, ...) as (R, Hk, width), in the dtype of the sums."""
    heads, dtype = moments.key_mean.shape[1], moments.key_mean.dtype
    return torch.cat([t.to(dtype).expand(-1, heads, *t.shape[2:]).flatten(2) for t in moments], dim=2)


def unflat(rows: Tensor, dim: int, value_dim: int, dtype: torch.dtype) -> Moments:
    """What `flat` made so; the maxima in `dtype`."""
    pairs = dim * value_dim
    parts = list(rows.split([1, dim, dim, value_dim, pairs, dim, pairs, dim], dim=2))
    parts[0] = parts[0][:, :1]  # heads share it
    parts[4], parts[6] = (parts[i].unflatten(2, (dim, value_dim)) for i in (4, 6))
    parts[5] = parts[5].detach().to(dtype)
    return Moments(*parts)


def far_moments(
    processes: Processes, own: Tensor, places: Places, sizes: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """Sent (kinds, R, Hk, width) -> of each own line the far past, and the far future, likewise."""
    found: Tensor = _Exchange.apply(own, processes, places, sizes, dtype)
    return found


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, own: Tensor, processes: Processes, places: Places, sizes: tuple[int, int], dtype: torch.dtype
    ) -> Tensor:
        everyone = processes.gather(own)  # (P, kinds, R, Hk, width)
        ctx.processes, ctx.arguments = processes, (places, sizes, dtype)
        ctx.save_for_backward(everyone)
        return _read_by(processes.rank, list(everyone), *ctx.arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        processes: Processes = ctx.processes
        received = processes.gather(grads[0])
        everyone = list(ctx.saved_tensors[0])
        with torch.enable_grad():
            mine = everyone[processes.rank] = everyone[processes.rank].detach().requires_grad_()
            read = [_read_by(rank, everyone, *ctx.arguments) for rank in range(processes.size)]
        of_mine = [(x, g) for x, g in zip(read, received, strict=True) if x.requires_grad]
        if not of_mine:
            return torch.zeros_like(mine), None, None, None, None
        outputs, gradients = zip(*of_mine, strict=True)
        (gradient,) = torch.autograd.grad(outputs, mine, gradients)
        return gradient, None, None, None, None


def _read_by(rank: int, everyone: list[Tensor], places: Places, sizes: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """What process `rank` reads."""
    kinds = []
    for kind, others in enumerate((range(rank), range(rank + 1, len(everyone)))[: len(everyone[rank])]):
        found = _of_nothing(everyone[rank][kind], *sizes)
        for line, at in places[rank].items():
            total = unflat(found[at], *sizes, dtype)
            for other in others:
                if line in places[other]:
                    total = merged(total, unflat(everyone[other][kind, places[other][line]], *sizes, dtype))
            found = torch.cat([found[: at.start], flat(total), found[at.stop :]])
        kinds.append(found)
    return torch.stack(kinds)


def _of_nothing(like: Tensor, dim: int, value_dim: int) -> Tensor:
    """Moments of no key."""
    first = 1 + 2 * dim + value_dim + dim * value_dim
    nothing = torch.zeros_like(like)
    nothing[..., first : first + dim] = -torch.inf  # the maxima
    return nothing
