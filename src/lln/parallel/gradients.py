"""Gradients of what every process has a copy of."""

from collections.abc import Iterable

import torch
from torch import Tensor

from lln.parallel.context import processes_of
from lln.parallel.processes import GroupLike

BUCKET = 1 << 24  # numbers at a time


@torch.no_grad()
def sum_gradients(parameters: Iterable[Tensor], group: GroupLike) -> None:
    """Add up, in place and in the order of ranks, the gradients that the processes of `group` have of the same parameters.

    Each process of a sequence has the part of its own stretch. Call it once after `backward`, where nothing else adds them
    up: DDP or FSDP over the same processes already do (and divide by their number; see the guide). Sharded
    parameters (FSDP2 over another dimension of the mesh) are summed shard by shard.
    """
    from torch.distributed.tensor import DTensor  # imports much, which attention alone does not need

    processes = processes_of(group)
    owned = [p for p in parameters if p.requires_grad]
    for p in owned:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    grads = [g.to_local() if isinstance(g, DTensor) else g for g in (p.grad for p in owned) if g is not None]
    for dtype, device in dict.fromkeys((g.dtype, g.device) for g in grads):
        alike = [g for g in grads if (g.dtype, g.device) == (dtype, device)]
        flat = torch.cat([g.flatten() for g in alike])
        for piece in flat.split(BUCKET):
            total, *others = processes.gather(piece)
            for part in others:
                total += part
            piece.copy_(total)
        for g, summed in zip(alike, flat.split([g.numel() for g in alike]), strict=True):
            g.copy_(summed.view_as(g))
