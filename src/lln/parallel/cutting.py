"""Cut a tensor into the stretches of a group's processes, and join what they have."""

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from lln.ops import stretches
from lln.parallel.context import processes_of
from lln.parallel.processes import GroupLike, Processes


def stretch_lengths(length: int, size: int, multiple_of: int = 64) -> list[int]:
    """How `length` tokens are spread over `size` processes: equally, in whole blocks; the last ones may have fewer or none."""
    each = -(-length // size)
    each = -(-each // multiple_of) * multiple_of
    return [max(0, min(each, length - r * each)) for r in range(size)]


def shard(x: Tensor, dim: int, group: GroupLike | None = None, *, multiple_of: int = 64) -> Tensor:
    """This process's stretch of x along `dim`: of input ids, labels, positions and masks alike.

    Every process must have the whole x. Cuts are at multiples of `multiple_of`: with that of the block size, and without
    padding on the left, the blocks of LLN+Diag need no exchange. A view of x.
    """
    processes = _processes(group, "shard")
    if multiple_of < 1:
        raise ValueError(f"multiple_of must be at least 1, got {multiple_of}")
    lengths = stretch_lengths(x.shape[dim], processes.size, multiple_of)
    return x.narrow(dim, sum(lengths[: processes.rank]), lengths[processes.rank])


def gather(x: Tensor, dim: int, group: GroupLike | None = None) -> Tensor:
    """The whole tensor, of which each process has the stretch x along `dim`; stretches may differ in length.

    Gradients flow: that of a stretch is the sum of what all processes have for it.
    """
    return gather_over(_processes(group, "gather"), x, dim)


def gather_over(processes: Processes, x: Tensor, dim: int) -> Tensor:
    """`gather`, for those who know the processes."""
    lengths = processes.gather(torch.tensor([x.shape[dim]], device=x.device)).flatten().tolist()
    joined: Tensor = _Gather.apply(x, dim, processes, lengths)
    return joined


def mask_of_the_whole(processes: Processes, key_mask: Tensor | None, k: Tensor) -> tuple[Tensor | None, int, int]:
    """(B, N) or None, where this stretch begins, and N; processes without a mask have no padding."""
    batch, length = k.shape[0], k.shape[2]
    everyone = processes.gather(torch.tensor([length, key_mask is not None], device=k.device)).tolist()
    lengths = [n for n, _ in everyone]
    start, total = sum(lengths[: processes.rank]), sum(lengths)
    if not any(has_mask for _, has_mask in everyone):
        return None, start, total
    own = torch.ones(batch, length, dtype=torch.bool, device=k.device) if key_mask is None else key_mask
    whole: Tensor = _Gather.apply(own, 1, processes, lengths)
    return whole, start, total


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, processes: Processes, lengths: list[int]) -> Tensor:
        ctx.dim, ctx.processes, ctx.lengths = dim, processes, lengths
        rows = x.movedim(dim, 0)
        filled = rows.new_zeros(max(lengths), *rows.shape[1:])
        filled[: rows.shape[0]] = rows
        # bool is not among what every backend of torch.distributed sends
        everyone = processes.gather(filled.to(torch.uint8) if x.dtype == torch.bool else filled).to(x.dtype)
        return torch.cat([part[:n] for part, n in zip(everyone, lengths, strict=True)]).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        everyone = ctx.processes.gather(grads[0])
        total = everyone[0]
        for part in everyone[1:]:
            total = total + part
        ends = list(accumulate(ctx.lengths))
        at = ctx.processes.rank
        return total.narrow(ctx.dim, ends[at] - ctx.lengths[at], ctx.lengths[at]), None, None, None


def _processes(group: GroupLike | None, what: str) -> Processes:
    if group is not None:
        return processes_of(group)
    processes: Processes | None = stretches.holders
    if processes is None:
        raise ValueError(f"{what} needs a group: pass group=, or call it inside lln.parallel.context_parallel(group)")
    return processes
