"""Packed sequences as sequences that start at tile boundaries.

Every sequence is moved to slots that begin with a tile of their own (`lln.ops.slots`). The number of slots depends on shapes
alone, so no boundary is read back from the device. `sequence`, one number per tile, says what belongs together.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.lln.chunked import bidirectional
from lln.ops.lln.chunked.tiles import decay, finite, laid_out, wide
from lln.ops.lln.op import Operands, State
from lln.ops.slots import Slots, packed_slots, sequence_of_slots


class Packed(NamedTuple):
    """Operands (1, H, slots, D) whose sequences start at tile boundaries; alpha, beta and bias have one row a sequence."""

    x: Operands
    slots: Slots
    sequence: Tensor  # (tiles,), the sequence a tile belongs to

    @staticmethod
    def of(x: Operands, tile: int) -> "Packed":
        assert x.cu_seqlens is not None
        slots = packed_slots(x.cu_seqlens, x.k.shape[2], tile)
        sequence = sequence_of_slots(x.cu_seqlens, slots.total, tile)
        counts = slots.scatter_mask(torch.ones_like(slots.slot, dtype=torch.bool))
        q, k, v = (slots.scatter(t) for t in (x.q, x.k, x.v))
        return Packed(x._replace(q=q, k=k, v=v, key_mask=counts, cu_seqlens=None), slots, sequence)

    def back(self, rows: Tensor, like: Tensor) -> Tensor:
        return laid_out(self.slots.gather(rows), like)


def forward(x: Operands) -> tuple[Tensor, State]:
    """Bidirectional: each tile is a sample with a state; the states of a sequence are merged and read by its tiles."""
    packed, tiles = _as_samples(x)
    state = _merged(bidirectional.key_state(tiles), packed.sequence, x)
    out = bidirectional.read_state(tiles, _of_tiles(state, packed.sequence))
    return packed.back(_as_rows(out), x.q), state


def backward(
    grad: Tensor, out: Tensor, x: Operands, state: State, final: tuple[Tensor | None, Tensor | None]
) -> dict[str, Tensor]:
    """`final`: the gradients of the final sums and normaliser, if any came."""
    packed, tiles = _as_samples(x)
    sequence, count = packed.sequence, x.beta.shape[0]
    tile = tiles.q.shape[2]
    grad_tiles, out_tiles = (_rows_as_samples(packed.slots.scatter(t), tile) for t in (grad, out))
    gradients, part = bidirectional.read_state_backward(grad_tiles, out_tiles, tiles, _of_tiles(state, sequence))

    def summed(t: Tensor) -> Tensor:
        return t.new_zeros(count, *t.shape[1:]).index_add(0, sequence, t)

    dsummed, dnormaliser = (
        summed(t) if own is None else summed(t) + own for t, own in zip(part[1:], final, strict=True)
    )
    whole = State(state.maximum, dsummed, dnormaliser)
    gradients |= bidirectional.key_state_backward(tiles, _of_tiles(whole, sequence))
    found = {n: packed.back(_as_rows(gradients[n]), getattr(x, n)) for n in ("q", "k", "v")}
    found |= {n: summed(wide(gradients[n])).to(x.beta.dtype) for n in ("alpha", "beta", "bias")}
    if x.start is not None:
        kept = decay(x.start.maximum, state.maximum)
        of_start = State(x.start.maximum, dsummed * kept[..., None], dnormaliser * kept).with_sums_in(x.sums_dtype)
        found |= {"start_summed": of_start.summed, "start_normaliser": of_start.normaliser}
    return found


def _as_samples(x: Operands) -> tuple[Packed, Operands]:
    tile = bidirectional.tile_rows(x.k.device)
    packed = Packed.of(x, tile)
    y, sequence = packed.x, packed.sequence
    assert y.key_mask is not None
    q, k, v = (_rows_as_samples(t, tile) for t in (y.q, y.k, y.v))
    bias = None if y.bias is None else y.bias[sequence]
    return packed, Operands(q, k, v, y.alpha[sequence], y.beta[sequence], bias, y.key_mask.unflatten(1, (-1, tile))[0])


def _rows_as_samples(x: Tensor, tile: int) -> Tensor:
    """(1, H, slots, D) as (tiles, H, tile, D)."""
    return x.unflatten(2, (-1, tile))[0].transpose(0, 1)


def _as_rows(x: Tensor) -> Tensor:
    """(tiles, H, tile, D) as (1, H, slots, D)."""
    return x.transpose(0, 1).flatten(1, 2)[None]


def _of_tiles(state: State, sequence: Tensor) -> State:
    return State(*(t[sequence] for t in state))


def _merged(parts: State, sequence: Tensor, x: Operands) -> State:
    """The state of each sequence from those of its tiles and its starting state."""
    start = x.start or State.without_keys(x.beta, x.v.shape[-1])
    index = sequence[:, None, None].expand_as(parts.maximum)
    maximum = start.maximum.detach().scatter_reduce(0, index, parts.maximum, "amax")
    kept, moved = decay(start.maximum.detach(), maximum), decay(parts.maximum, finite(maximum)[sequence])
    summed = (wide(start.summed) * kept[..., None]).index_add(0, sequence, parts.summed * moved[..., None])
    normaliser = (wide(start.normaliser) * kept).index_add(0, sequence, parts.normaliser * moved)
    return State(maximum, summed, normaliser)
