"""Causal attention, near exact and far by moments, for a piece of a sequence that goes on from a past of constant size.

What is left of a sequence at its end: the keys and values of the open block and of the `neighbours` blocks before it, those of
the first tokens, and the moments of all other keys. A piece may start and end anywhere in a block.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.near_far.layout import FirstTokens, Layout
from lln.ops.near_far.moments import Moments, merged
from lln.ops.near_far.op import Operands
from lln.ops.near_far.plain import run
from lln.ops.near_far.step import StepOperands, near_far_step, row
from lln.ops.slots import Slots


class Past(NamedTuple):
    """The window is of neighbours + 1 blocks, the last of which is open: its slots from `taken` on hold nothing."""

    moments: Moments  # (B, Hk, ...), of the keys before the window, first tokens left out
    keys: Tensor  # (B, Hk, window, D)
    values: Tensor  # (B, Hk, window, Dv)
    counts: Tensor  # (B, window) bool, which slots hold a key that counts
    first: FirstTokens  # (B, Hk, first_tokens, ...)
    taken: Tensor  # (B,) int64, how many positions there were, from the first key that counted on

    @staticmethod
    def of_nothing(x: Operands) -> "Past":
        window = (x.neighbours + 1) * x.block_size
        batch, heads = x.k.shape[:2]

        def zeros(rows: int, like: Tensor) -> Tensor:
            return like.new_zeros(batch, heads, rows, like.shape[-1])

        def none(rows: int) -> Tensor:
            return torch.zeros(batch, rows, dtype=torch.bool, device=x.k.device)

        first = FirstTokens(zeros(x.first_tokens, x.k), zeros(x.first_tokens, x.v), none(x.first_tokens))
        return Past(
            Moments.of_nothing(x.k, x.v, x.beta.dtype), zeros(window, x.k), zeros(window, x.v), none(window), first,
            torch.zeros(batch, dtype=torch.int64, device=x.k.device),
        )  # fmt: skip


def continue_near_far(x: Operands, past: Past) -> tuple[Tensor, Past]:
    """The output of a causal piece (B, Hq, N, Dv), and what is past after it."""
    batch, length = x.k.shape[0], x.k.shape[2]
    if x.key_mask is None:
        counts = torch.ones(batch, length, dtype=torch.bool, device=x.k.device)
        taken, shift = past.taken + length, past.taken[:, None]
    else:
        counts, started = x.key_mask, past.taken > 0
        # rows before the first key that counts
        leading = torch.where(counts.any(dim=1), counts.int().argmax(dim=1), length)
        taken = past.taken + torch.where(started, length, length - leading)
        shift = torch.where(started, past.taken, -leading)[:, None]
    position = torch.arange(length, device=x.k.device) + shift  # (B, N), below 0 before the first key that counts
    first = _with_first(x, past.first, position, counts)
    if length == 1:
        return _one_token(x, past, first, position, counts, taken)
    window, size = past.keys.shape[2], x.block_size
    newest = past.taken // size  # the number of the open block, which is block w of the slots
    start = (newest - x.neighbours)[:, None] * size
    slots = Slots.of(torch.where(position < 0, -1, position - start), window + length - 1, size)
    keys, values = slots.scatter(x.k, past.keys), slots.scatter(x.v, past.values)
    slot_counts = slots.scatter_mask(counts, past.counts)
    number = (newest - x.neighbours)[:, None] + torch.arange(slots.total // size, device=x.k.device)
    laid = x._replace(q=slots.scatter(x.q), k=keys, v=values, key_mask=None)
    layout = Layout(laid, slot_counts, number, None, first if x.first_tokens else None, slots)
    open_block = taken // size - newest + x.neighbours  # where the block lies in the slots that is open afterwards
    out, moments = run(layout, past.moments, open_block)
    at = ((open_block - x.neighbours) * size)[:, None] + torch.arange(window, device=x.k.device)  # (B, window)
    inside = at < slots.total  # an exactly full last block leaves an empty one after it, which may lie beyond the slots
    at = at.clamp(max=slots.total - 1)
    left = Past(
        moments, _rows(keys, at), _rows(values, at), slot_counts.gather(1, at) & inside, first, taken
    )  # fmt: skip
    return slots.gather(out), left


def _one_token(
    x: Operands, past: Past, first: FirstTokens, position: Tensor, counts: Tensor, taken: Tensor
) -> tuple[Tensor, Past]:
    """`continue_near_far` for decoding: one row instead of a block of them."""
    size, window = x.block_size, past.keys.shape[2]
    newest = past.taken // size
    slot = position - (newest - x.neighbours)[:, None] * size  # (B, 1)
    if x.key_mask is None:
        at = slot[:, None, :, None]
        keys, values = (whole.scatter(2, at.expand_as(t), t) for whole, t in ((past.keys, x.k), (past.values, x.v)))
        seen = past.counts.scatter(1, slot, counts)
    else:
        slots = Slots(torch.where(position < 0, window, slot), window)
        keys, values = slots.scatter(x.k, past.keys), slots.scatter(x.v, past.values)
        seen = slots.scatter_mask(counts, past.counts)
    out = _one_row(x, past, keys, values, seen, first, newest)
    if x.key_mask is not None:
        out = torch.where((position < 0)[:, None, :, None], 0.0, out)
    full = taken // size > newest  # (B,): the next token opens a block, and the oldest one of the window becomes far
    moments = past.moments
    # Looking would make a device wait, and break a graph.
    if not full.is_cpu or torch.compiler.is_compiling() or bool(full.any()):
        moments = merged(moments, _oldest(x, keys, values, seen, newest)).or_else(full, moments)
        later = torch.arange(window, device=x.k.device) + torch.where(full, size, 0)[:, None]  # (B, window)
        at = later.clamp(max=window - 1)
        keys, values, seen = _rows(keys, at), _rows(values, at), seen.gather(1, at) & (later < window)
    return out, Past(moments, keys, values, seen, first, taken)


def _one_row(x: Operands, past: Past, k: Tensor, v: Tensor, seen: Tensor, first: FirstTokens, newest: Tensor) -> Tensor:
    """(B, Hq, 1, Dv) of the newest token, whose key is in the window."""
    block = torch.arange(x.first_tokens, device=k.device) // x.block_size
    outside = first.counts & (newest[:, None] - block > x.neighbours)
    step = StepOperands(
        x.q, k, v, seen, first.keys, first.values, outside, x.alpha, x.beta, x.bias, x.weights, *past.moments, x.scale
    )
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in step if isinstance(t, Tensor))
    return (row(step) if wanted else near_far_step(step)).out


def _oldest(x: Operands, keys: Tensor, values: Tensor, seen: Tensor, newest: Tensor) -> Moments:
    """The moments of the first block of the window, first tokens left out."""
    size = x.block_size
    position = (newest - x.neighbours)[:, None] * size + torch.arange(size, device=keys.device)
    counts = seen[:, :size] & (position >= x.first_tokens)
    k, v = (t[:, :, None, :size].to(x.beta.dtype) for t in (keys, values))
    return Moments.of(k, v, x.beta[:, :, None], counts[:, None]).at(0)


def _with_first(x: Operands, first: FirstTokens, position: Tensor, counts: Tensor) -> FirstTokens:
    """With those of the piece that are among the first tokens of their sequence."""
    if not x.first_tokens:
        return first
    among = Slots(torch.where((position >= 0) & (position < x.first_tokens), position, x.first_tokens), x.first_tokens)
    return FirstTokens(
        among.scatter(x.k, first.keys), among.scatter(x.v, first.values), among.scatter_mask(counts, first.counts)
    )


def _rows(x: Tensor, at: Tensor) -> Tensor:
    return x.gather(2, at[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
