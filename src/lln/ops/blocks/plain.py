"""Softmax attention inside blocks in plain torch, by scaled_dot_product_attention over (batch x blocks, heads, block, D).

Without masks, blocks are views of the inputs; else positions are moved to slots (`lln.ops.slots`). No value is read back.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lln.ops.backends import Backend
from lln.ops.blocks.op import OpenOperands, Operands, Results, blocks, open_block
from lln.ops.lln.chunked.tiles import has_tangent, laid_out
from lln.ops.lln.op import compute_dtype
from lln.ops.masks import masked_softmax
from lln.ops.slots import block_slots

BLOCKS_AT_ONCE = 64  # of each head; bounds the weights that are in memory during backward


def forward(x: Operands) -> Results:
    if x.key_mask is None and x.cu_seqlens is None:
        return Results(laid_out(_aligned_blocks(x), x.q))
    slots = block_slots(x.q, x.key_mask, x.cu_seqlens, x.block_size)
    counts = torch.ones_like(slots.slot, dtype=torch.bool) if x.key_mask is None else x.key_mask
    q, k, v = (slots.scatter(t) for t in (x.q, x.k, x.v))
    out = _masked_blocks(q, k, v, slots.scatter_mask(counts), x.block_size, x.scale, x.is_causal)
    return Results(laid_out(slots.gather(out), x.q))


def _aligned_blocks(x: Operands) -> Tensor:
    """Blocks that start at multiples of the block size: whole ones together, the ragged last one on its own."""
    length = x.q.shape[2]
    whole = length // x.block_size * x.block_size
    parts = []
    for at, size in ((slice(0, whole), x.block_size), (slice(whole, length), length - whole)):
        if at.start == at.stop:
            continue
        q, k, v = (t if (at.start, at.stop) == (0, length) else t[:, :, at] for t in (x.q, x.k, x.v))
        parts.append(_attend(q, k, v, size, x.scale, None, x.is_causal))
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
    out = _attend(q, k, v, block_size, scale, allowed | ~has_key, is_causal)
    rows = has_key.expand(-1, -1, block_size, -1).flatten(1, 2)[:, None]  # (B, 1, N, 1)
    return torch.where(rows, out, 0.0)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, block_size: int, scale: float, allowed: Tensor | None, is_causal: bool
) -> Tensor:
    """scaled_dot_product_attention over (batch x blocks, heads, block, D); a view for layouts with heads inside."""
    batch, count = q.shape[0], q.shape[2] // block_size
    gqa = q.shape[1] != k.shape[1]
    q, k, v = (x.unflatten(2, (count, block_size)).transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    mask = None if allowed is None else allowed.expand(batch, -1, block_size, -1).flatten(0, 1)[:, None]
    poison = None
    if is_causal:
        k, v, poison = _without_poison(k, v)
    # torch's own causal path divides by zero for a scale of 0 or less, so a mask says it.
    if is_causal and mask is None and scale <= 0:
        mask = torch.ones(block_size, block_size, dtype=torch.bool, device=q.device).tril()
    # of torch's kernels only the plain one has forward-mode derivatives
    with sdpa_kernel(SDPBackend.MATH) if any(map(has_tangent, (q, k, v))) else nullcontext():
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal and mask is None, scale=scale, enable_gqa=gqa
        )  # (B * blocks, Hq, block, Dv)
    if poison is not None:
        out = out + poison.repeat_interleave(out.shape[1] // poison.shape[1], dim=1)
    return out.unflatten(0, (batch, count)).transpose(1, 2).flatten(2, 3)


def _without_poison(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Finite keys and values, and what the others add to the rows that see them: 0 x NaN would reach earlier rows as well."""
    with torch.no_grad():
        bad_key = ~torch.isfinite(k).all(dim=-1, keepdim=True)
        bad_value = ~torch.isfinite(v)
        poison = torch.where(bad_key, torch.nan, torch.where(bad_value, v, 0.0)).cumsum(dim=-2)
    return torch.where(bad_key, 0.0, k), torch.where(bad_value, 0.0, v), poison


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    grad = grads["out"]
    assert grad is not None
    q, block_size = x.q, x.block_size
    slots = block_slots(q, x.key_mask, x.cu_seqlens, block_size)
    counts = torch.ones_like(slots.slot, dtype=torch.bool) if x.key_mask is None else x.key_mask
    k, v = (torch.where(counts[:, None, :, None], t, 0.0) for t in (x.k, x.v))
    key_heads = k.shape[1]

    def blocked(t: Tensor) -> Tensor:
        """(B, heads, N, D) as (B, Hk, groups, blocks, block, D) in the compute dtype."""
        slotted = slots.scatter(t).to(compute_dtype(t.dtype))
        return slotted.unflatten(2, (-1, block_size)).unflatten(1, (key_heads, -1))

    parts = [blocked(t) for t in (q, k, v, grad)]
    allowed = slots.scatter_mask(counts).unflatten(1, (-1, block_size))[:, None, None, :, None]  # keys that count
    if x.is_causal:
        allowed = allowed & torch.ones(block_size, block_size, dtype=torch.bool, device=q.device).tril()
    found: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for start in range(0, parts[0].shape[3], BLOCKS_AT_ONCE):
        at = slice(start, start + BLOCKS_AT_ONCE)
        piece = _inside_blocks([t[:, :, :, at] for t in parts], allowed[:, :, :, at], x.scale)
        for pieces, gradient in zip(found, piece, strict=True):
            pieces.append(gradient)
    gradients = (torch.cat(pieces, dim=3).flatten(3, 4).flatten(1, 2) for pieces in found)
    return {
        name: laid_out(slots.gather(gradient), getattr(x, name))
        for name, gradient in zip(("q", "k", "v"), gradients, strict=True)
    }


def _inside_blocks(parts: list[Tensor], allowed: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, grad = parts
    scores = scale * (q @ k.mT)  # (B, Hk, groups, blocks, block, block)
    weights = masked_softmax(scores, allowed.expand_as(scores))
    dweights = grad @ v.mT
    dscores = weights * (dweights - (weights * dweights).sum(dim=-1, keepdim=True))
    dq = scale * (dscores @ k)
    dk = scale * (dscores.mT @ q).sum(dim=2, keepdim=True)  # the query heads of a key head add up
    dv = (weights.mT @ grad).sum(dim=2, keepdim=True)
    return dq, dk, dv


def forward_open(x: OpenOperands) -> Results:
    k, v = (torch.where(x.key_mask[:, None, :, None], t, 0.0) for t in (x.k, x.v))
    has_key = x.key_mask.any(dim=-1)[:, None, None, None]
    out = F.scaled_dot_product_attention(
        x.q, k, v, attn_mask=x.key_mask[:, None, None] | ~has_key, scale=x.scale, enable_gqa=x.q.shape[1] != k.shape[1]
    )
    return Results(laid_out(torch.where(has_key, out, 0.0), x.q))


# Outside of graphs, autograd through scaled_dot_product_attention is faster than `backward`.
PLAIN = blocks.backends.register(Backend("chunked", forward, backward, transparent=True, by_autograd=True))
open_block.backends.register(Backend("chunked", forward_open, transparent=True, by_autograd=True))
