"""Causal attention inside blocks for a piece of a sequence that goes on from an open block.

The piece may end anywhere in a block; what it leaves behind is the block that is open then, its keys and values.
"""

import torch
from torch import Tensor

from lln.ops import stretches
from lln.ops.blocks.op import OpenOperands, Operands, blocks, open_block
from lln.ops.blocks.open_block import OpenBlock
from lln.ops.masks import first_key
from lln.ops.slots import Slots


def continue_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: OpenBlock | None,
    *,
    block_size: int,
    scale: float,
    key_mask: Tensor | None,
    backend: str,
) -> tuple[Tensor, OpenBlock]:
    """The output of the piece, and the block that is open after it."""
    if stretches.holders is not None:
        pair: tuple[Tensor, OpenBlock] = stretches.form_of("open blocks")(
            q, k, v, block, block_size=block_size, scale=scale, key_mask=key_mask, backend=backend
        )
        return pair
    batch, length = k.shape[0], k.shape[2]
    counts = torch.ones(batch, length, dtype=torch.bool, device=k.device) if key_mask is None else key_mask
    if block is None:
        block = empty_block(k, v, block_size)
    elif block.filled.is_cpu and not torch.compiler.is_compiling():
        block.check_filled()
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, block.keys, block.values))
    if length == 1 and not needs_gradient:
        return _continue_with_one_token(q, k, v, block, scale, counts, backend)
    first = first_key(counts, otherwise=length)[:, 0]  # (B,)
    shift = torch.where(block.started, block.filled, -first)
    slots = Slots.of(torch.arange(length, device=k.device) + shift[:, None], length + block_size - 1, block_size)
    keys, values = slots.scatter(k, block.keys), slots.scatter(v, block.values)
    slot_counts = slots.scatter_mask(counts, block.counts)
    out = blocks_as_samples(slots.scatter(q), keys, values, slot_counts, block_size, scale, True, backend)

    taken = torch.where(block.started, block.filled + length, length - first)  # slots in use, (B,)
    newest = taken // block_size * block_size  # where the open block starts, (B,)
    # An exactly full last block leaves an empty one after it, which may lie beyond the slots: its content is never read.
    at = (newest[:, None] + torch.arange(block_size, device=k.device)).clamp(max=slots.total - 1)  # (B, block)
    left = OpenBlock(
        _gather_rows(keys, at),
        _gather_rows(values, at),
        slot_counts.gather(1, at) & (newest < slots.total)[:, None],
        taken - newest,
        block.started | (first < length),
    )
    return slots.gather(out), left


def _continue_with_one_token(
    q: Tensor, k: Tensor, v: Tensor, block: OpenBlock, scale: float, counts: Tensor, backend: str
) -> tuple[Tensor, OpenBlock]:
    """`continue_blocks` for decoding: one row of the open block instead of all of them."""
    keys, values, seen, after = block.with_token(k, v, counts)
    return open_block(OpenOperands(q, keys, values, seen, scale), backend).out, after


def blocks_as_samples(
    q: Tensor, k: Tensor, v: Tensor, counts: Tensor, block_size: int, scale: float, is_causal: bool, backend: str
) -> Tensor:
    """Attention in blocks that start at multiples of the block size, whichever of their keys counts first.

    Each is a sample of its own. Counted from its first key that counts it is still one block: when causal, rows before that key
    see none anyway; otherwise the keys that count are put first, and their order means nothing.
    """
    batch, count = q.shape[0], q.shape[2] // block_size
    q, k, v = (x.unflatten(2, (count, block_size)).transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    counts = counts.unflatten(1, (count, block_size)).flatten(0, 1)
    if not is_causal:
        order = torch.argsort(~counts, dim=1, stable=True)
        k, v, counts = _gather_rows(k, order), _gather_rows(v, order), counts.gather(1, order)
    out = blocks(
        Operands(q, k, v, counts, None, block_size, scale, is_causal), backend
    ).out  # (B * blocks, Hq, block, Dv)
    return out.unflatten(0, (batch, count)).transpose(1, 2).flatten(2, 3)


def empty_block(k: Tensor, v: Tensor, block_size: int) -> OpenBlock:
    """What is open before the first token."""
    batch, heads = k.shape[:2]
    return OpenBlock(
        k.new_zeros(batch, heads, block_size, k.shape[3]),
        v.new_zeros(batch, heads, block_size, v.shape[3]),
        torch.zeros(batch, block_size, dtype=torch.bool, device=k.device),
        torch.zeros(batch, dtype=torch.int64, device=k.device),
        torch.zeros(batch, dtype=torch.bool, device=k.device),
    )


def _gather_rows(x: Tensor, at: Tensor) -> Tensor:
    return x.gather(2, at[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
