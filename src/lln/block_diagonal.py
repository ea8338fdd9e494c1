"""Softmax attention inside blocks of consecutive positions: by the native kernel (`lln.backends.native.blocks`) for the
tensors that it takes, else by torch's own scaled_dot_product_attention.

    out_i = sum_{j in block(i)} softmax_j(scale * q_i . k_j) v_j,      block(i) = floor((i - first) / block_size)

`first` is the sample's first key that counts, or the start of its packed sequence, so that left padding and packing
change nothing. In torch, where no sample is shifted, blocks are views of the inputs; else positions are moved to slots
(`lln.slots`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.backends.block_operands import BlockOperands
from lln.block_operator import attend_to_open_block, define_block_operator, native_takes
from lln.checks import check_block_size, check_masks, check_qkv
from lln.precision import under_autocast
from lln.slots import Slots, block_slots
from lln.state import OpenBlock


def block_diagonal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_size: int = 64,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Softmax attention of each position to the keys of its block, in time and memory linear in the length.

    q is (B, Hq, N, D), k (B, Hk, N, D), v (B, Hk, N, Dv), Hq a multiple of Hk; the output is (B, Hq, N, Dv). The block size
    has nothing to do with the head size; the last block may be shorter. `scale` is D**-0.5 by default.
    `key_padding_mask` (B, N) is True where the key counts. A row without keys gives zeros.
    """
    q, k, v = under_autocast(q, k, v)
    check_inputs(q, k, v, block_size, key_padding_mask, is_causal, cu_seqlens)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    edges = None if cu_seqlens is None else cu_seqlens.to(torch.int64)
    x = BlockOperands(q, k, v, key_padding_mask, edges, block_size, scale, is_causal)
    # Outside of graphs, autograd through scaled_dot_product_attention is faster than the operator without its kernel.
    in_operator = torch.compiler.is_compiling() or _runs_natively(q, k, v)
    return block_operator(*x) if in_operator else _attend_in_blocks(x)


def check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_size: int,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    cu_seqlens: Tensor | None,
) -> None:
    check_block_size(block_size)
    check_qkv(q, k, v)
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"blocks need as many queries as keys, got {q.shape[2]} and {k.shape[2]}")
    check_masks(q, k, key_padding_mask, is_causal, cu_seqlens)


def continue_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: OpenBlock | None,
    *,
    block_size: int,
    scale: float | None,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, OpenBlock]:
    """Causal block-diagonal attention of a piece that goes on from `block`, and the block that is open after it."""
    batch, length = k.shape[0], k.shape[2]
    scale = q.shape[3] ** -0.5 if scale is None else scale
    counts = key_padding_mask
    if counts is None:
        counts = torch.ones(batch, length, dtype=torch.bool, device=k.device)
    first = torch.where(counts.any(dim=1), counts.int().argmax(dim=1), length)  # (B,)
    if block is None:
        block = _empty_block(k, v, block_size)
    if length == 1 and _runs_natively(q, k, v) and not _needs_gradient(q, k, v):
        return _continue_with_one_token(q, k, v, block, scale, counts)
    shift = torch.where(block.started, block.filled, -first)
    slots = Slots.of(torch.arange(length, device=k.device) + shift[:, None], length + block_size - 1, block_size)
    keys, values = slots.scatter(k, block.keys), slots.scatter(v, block.values)
    slot_counts = slots.scatter_mask(counts, block.counts)
    attend = _blocks_as_samples if _runs_natively(q, k, v) else _masked_blocks
    out = attend(slots.scatter(q), keys, values, slot_counts, block_size, scale, is_causal=True)

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
    q: Tensor, k: Tensor, v: Tensor, block: OpenBlock, scale: float, counts: Tensor
) -> tuple[Tensor, OpenBlock]:
    """`continue_blocks` for decoding: one row of the open block instead of all of them."""
    slot = block.filled[:, None]  # (B, 1)
    keys, values = (
        whole.scatter(2, slot[:, None, :, None].expand_as(x), x) for whole, x in ((block.keys, k), (block.values, v))
    )
    seen = block.counts.scatter(1, slot, counts)
    started = block.started | counts[:, 0]
    out = attend_to_open_block(q, keys, values, seen, scale)
    taken = block.filled + started
    is_open = taken < block.size  # else the next token starts an empty block
    left = OpenBlock(keys.detach(), values.detach(), seen & is_open[:, None], taken * is_open, started)
    return out, left


def _runs_natively(*tensors: Tensor) -> bool:
    """torch.func's transforms do not see through an operator's own gradient, but they do through torch's attention."""
    transformed = not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
    return not transformed and native_takes(*tensors)


def _needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _attend_in_blocks(x: BlockOperands) -> Tensor:
    q, k, v, key_mask, cu_seqlens, block_size, scale, is_causal = x
    starts_with_padding = key_mask is not None and not bool(key_mask[:, 0].all())
    if cu_seqlens is None and not starts_with_padding:
        return _aligned_blocks(q, k, v, block_size, scale, key_mask, is_causal)
    slots = block_slots(q, key_mask, cu_seqlens, block_size)
    counts = torch.ones_like(slots.slot, dtype=torch.bool) if key_mask is None else key_mask
    q, k, v = (slots.scatter(x) for x in (q, k, v))
    return slots.gather(_masked_blocks(q, k, v, slots.scatter_mask(counts), block_size, scale, is_causal))


block_operator = define_block_operator(_attend_in_blocks)


def _aligned_blocks(
    q: Tensor, k: Tensor, v: Tensor, block_size: int, scale: float, counts: Tensor | None, is_causal: bool
) -> Tensor:
    """Blocks that start at multiples of the block size: whole ones together, the ragged last one on its own."""
    length = q.shape[2]
    whole = length // block_size * block_size
    parts = []
    for at, size in ((slice(0, whole), block_size), (slice(whole, length), length - whole)):
        if at.start == at.stop:
            continue
        some_q, some_k, some_v = (x if (at.start, at.stop) == (0, length) else x[:, :, at] for x in (q, k, v))
        if counts is None:
            parts.append(_attend(some_q, some_k, some_v, size, scale, None, is_causal))
        else:
            parts.append(_masked_blocks(some_q, some_k, some_v, counts[:, at], size, scale, is_causal))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _masked_blocks(
    q: Tensor, k: Tensor, v: Tensor, counts: Tensor, block_size: int, scale: float, is_causal: bool
) -> Tensor:
    """Attention inside blocks to the keys that count (B, N); the others may hold anything, even NaN."""
    k, v = (torch.where(counts[:, None, :, None], x, 0.0) for x in (k, v))
    allowed = counts.unflatten(1, (-1, block_size))[:, :, None, :]  # (B, blocks, 1, keys)
    if is_causal:
        allowed = allowed & torch.ones(block_size, block_size, dtype=torch.bool, device=q.device).tril()
    has_key = allowed.any(dim=-1, keepdim=True)  # (B, blocks, queries or 1, 1)
    out = _attend(q, k, v, block_size, scale, allowed | ~has_key, is_causal=False)
    rows = has_key.expand(-1, -1, block_size, -1).flatten(1, 2)[:, None]  # (B, 1, N, 1)
    return torch.where(rows, out, 0.0)


def _blocks_as_samples(
    q: Tensor, k: Tensor, v: Tensor, counts: Tensor, block_size: int, scale: float, is_causal: bool
) -> Tensor:
    """The native kernel on blocks that start at multiples of the block size, whichever of their keys counts first.

    Each is a sample of its own. Counted from its first key that counts it is still one block, and causal rows before that
    key see none.
    """
    batch, blocks = q.shape[0], q.shape[2] // block_size
    q, k, v = (x.unflatten(2, (blocks, block_size)).transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    counts = counts.unflatten(1, (blocks, block_size)).flatten(0, 1)
    out = block_operator(q, k, v, counts, None, block_size, scale, is_causal)  # (B * blocks, Hq, block, Dv)
    return out.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, block_size: int, scale: float, allowed: Tensor | None, is_causal: bool
) -> Tensor:
    """scaled_dot_product_attention over (batch x blocks, heads, block, D); a view for layouts with heads inside."""
    batch, blocks = q.shape[0], q.shape[2] // block_size
    gqa = q.shape[1] != k.shape[1]
    q, k, v = (x.unflatten(2, (blocks, block_size)).transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    mask = None if allowed is None else allowed.expand(batch, -1, block_size, -1).flatten(0, 1)[:, None]
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=gqa
    )  # (B * blocks, Hq, block, Dv)
    return out.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)


def _empty_block(k: Tensor, v: Tensor, block_size: int) -> OpenBlock:
    batch, heads = k.shape[:2]
    return OpenBlock(
        k.new_zeros(batch, heads, block_size, k.shape[3]),
        v.new_zeros(batch, heads, block_size, v.shape[3]),
        torch.zeros(batch, block_size, dtype=torch.bool, device=k.device),
        torch.zeros(batch, dtype=torch.int64, device=k.device),
        torch.zeros(batch, dtype=torch.bool, device=k.device),
    )


def _gather_rows(x: Tensor, at: Tensor) -> Tensor:
    return x.gather(2, at[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])).detach()
