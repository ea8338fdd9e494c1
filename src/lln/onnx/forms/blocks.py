"""Softmax inside blocks, and positions put into blocks."""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.onnx.forms.scanning import refuse_packed, to_multiple
from lln.ops.blocks.op import Operands, Results
from lln.ops.lln.op import compute_dtype
from lln.ops.near_far.rows import softmax
from lln.ops.slots import Slots, block_slots


class InBlocks(NamedTuple):
    """Positions in T blocks of C slots, in the compute dtype; keys and values are 0 where nothing counts."""

    q: Tensor  # (B, Hk, groups, T, C, D)
    k: Tensor  # (B, Hk, T, C, D)
    v: Tensor  # (B, Hk, T, C, Dv)
    counts: Tensor  # (B or 1, T, C) bool
    slots: Slots | None
    length: int

    @staticmethod
    def of(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, size: int) -> "InBlocks":
        length, dtype = q.shape[2], compute_dtype(q.dtype)
        if key_mask is None:
            slots = None
            counts = to_multiple(torch.ones(1, length, dtype=torch.bool, device=q.device), size, 1)
            q, k, v = (to_multiple(t.to(dtype), size, 2) for t in (q, k, v))
        else:
            slots = block_slots(q, key_mask, None, size)
            counts = slots.scatter_mask(key_mask)
            q, k, v = (slots.scatter(t.to(dtype)) for t in (q, k, v))
            k, v = (torch.where(counts[:, None, :, None], t, 0.0) for t in (k, v))
        q = q.unflatten(1, (k.shape[1], -1)).unflatten(3, (-1, size))
        k, v = (t.unflatten(2, (-1, size)) for t in (k, v))
        return InBlocks(q, k, v, counts.unflatten(1, (-1, size)), slots, length)

    def back(self, out: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, Hk, groups, T, C, Dv) as (B, Hq, N, Dv)."""
        rows = out.flatten(3, 4).flatten(1, 2)
        return (rows[:, :, : self.length] if self.slots is None else self.slots.gather(rows)).to(dtype)


def blocks(x: Operands) -> Results:
    refuse_packed(x.cu_seqlens)
    laid = InBlocks.of(x.q, x.k, x.v, x.key_mask, x.block_size)
    allowed = laid.counts[:, :, None]  # (B or 1, T, 1, C)
    if x.is_causal:
        allowed = allowed & torch.ones(x.block_size, x.block_size, dtype=torch.bool, device=x.q.device).tril()
    near = softmax(laid.q, laid.k, laid.v, allowed, x.scale)
    return Results(laid.back(near.out, x.q.dtype))
