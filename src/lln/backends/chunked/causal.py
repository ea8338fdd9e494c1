"""Causal LLN attention tile by tile, in linear time, with no shift that depends on a later key.

With a_i = alpha q_i + w, b_j = beta k_j and the running maximum M_i = max_{j <= i} b_j (per feature):

    m_i   = max_l (a_il + M_il)                                       the shift of row i
    f_i   = exp(a_i + r - m_i) <= 1,    g_j = exp(b_j - r) <= e^64    r: the reference of the segment
    out_i = (f_i S + sum_{j <= i} (f_i . g_j) v_j) / (f_i . z + sum_{j <= i} f_i . g_j)

S and z sum the keys of earlier segments, relative to r. A segment's reference is the running maximum up to and including
its first key; where the running maximum exceeds r by more than 64, a new segment starts and the state is rescaled by
exp(r_old - r_new). A tile of ordinary keys is one segment. Rows outside a segment get zero features instead of smaller
matrices, so that an earlier row is computed by the same products whatever comes later: its bits cannot change.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lln.backends.chunked.tiles import counting, exponents, keep, read, spans
from lln.backends.operator import Gradients, Operands, State, empty_output

GROWTH = 64.0  # natural log; e^64 leaves room in float32 for sums over any length
TILE = 64


class Segment(NamedTuple):
    """Consecutive rows of a tile that share a reference."""

    rows: Tensor | None  # (B, Hk, C), True inside; None when it is the whole tile
    reference: Tensor  # (B, Hk, D)


class Tile(NamedTuple):
    """One tile of the sequence in the compute dtype, without the keys that do not count."""

    span: slice
    q: Tensor  # (B, Hk, groups, C, D)
    a: Tensor  # (B, Hk, groups, C, D)
    k: Tensor  # (B, Hk, C, D)
    b: Tensor  # (B, Hk, C, D), -inf for keys that do not count
    v: Tensor  # (B, Hk, C, Dv)

    def cut(self, x: Tensor) -> Tensor:
        """Drop the rows that only fill the tile up."""
        return x[..., : self.span.stop - self.span.start, :]

    def features(self, segment: Segment, row_shift: Tensor) -> tuple[Tensor, Tensor]:
        """f (B, Hk, groups, C, D) and g (B, Hk, 1, C, D), zero outside the segment."""
        reference = segment.reference[:, :, None]  # -inf while there is no key: then f = 0, and b is -inf as well
        f = self.a + reference[:, :, None] - row_shift
        g = self.b - torch.where(reference == -torch.inf, 0.0, reference)
        if segment.rows is not None:
            f = f.masked_fill(~segment.rows[:, :, None, :, None], -torch.inf)
            g = g.masked_fill(~segment.rows[..., None], -torch.inf)
        return f.exp_(), g.exp_()[:, :, None]


class Sequence(NamedTuple):
    """The operands, read tile by tile."""

    x: Operands

    @property
    def tile_rows(self) -> int:
        """A single step from a state, as in decoding, is not worth a whole tile."""
        return 1 if self.x.start is not None and self.x.q.shape[2] == 1 else TILE

    def rows(self, t: Tensor, span: slice) -> Tensor:
        return read(t, span, self.tile_rows, self.x.beta.dtype)

    def tile(self, span: slice) -> Tile:
        x = self.x
        counts = counting(x.key_mask, span, self.tile_rows, x.k)
        q = self.rows(x.by_key_head(x.q), span)
        a = q * x.by_key_head(x.alpha)[..., None, :]
        if x.bias is not None:
            a = a + x.by_key_head(x.bias)[..., None, :]
        k = keep(self.rows(x.k, span), counts)
        v = keep(self.rows(x.v, span), counts)
        return Tile(span, q, a, k, exponents(k, x.beta, counts), v)

    def tiles(self) -> Iterator[Tile]:
        for span in spans(self.x.q.shape[2], self.tile_rows):
            yield self.tile(span)


class RunningState:
    """The sums over all earlier keys: S and z relative to `reference`, and the running maximum."""

    def __init__(self, x: Operands) -> None:
        start = State.without_keys(x.beta, x.v.shape[-1]) if x.start is None else (t.clone() for t in x.start)
        self.maximum, self.summed, self.normaliser = start
        self.reference = self.maximum

    def shifts(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """Running maximum M (B, Hk, C, D) and the shift of each row m (B, Hk, groups, C, 1)."""
        running = torch.maximum(tile.b.cummax(dim=-2).values, self.maximum[:, :, None])
        row_shift = (tile.a + running[:, :, None]).amax(dim=-1, keepdim=True)
        return running, torch.where(row_shift == -torch.inf, 0.0, row_shift)

    def rescale(self, reference: Tensor) -> None:
        factor = decay(self.reference, reference)
        self.summed = self.summed * factor[..., None]
        self.normaliser = self.normaliser * factor
        self.reference = reference

    def add(self, g: Tensor, v: Tensor) -> None:
        self.summed = self.summed + (g.mT @ v[:, :, None])[:, :, 0]
        self.normaliser = self.normaliser + g.sum(dim=-2)[:, :, 0]


def forward(x: Operands) -> tuple[Tensor, State]:
    out, state = empty_output(x.q, x.v.shape[-1]), RunningState(x)
    for tile in Sequence(x).tiles():
        running, row_shift = state.shifts(tile)
        total: Tensor | None = None
        for segment in segments(running):
            state.rescale(segment.reference)
            f, g = tile.features(segment, row_shift)
            weights = (f @ g.mT).tril()  # (B, Hk, groups, C, C)
            numerator = f @ state.summed[:, :, None] + weights @ tile.v[:, :, None]
            part = numerator / _denominator(f, weights, state)
            total = part if total is None else total + part  # a row is non-zero in one segment only
            state.add(g, tile.v)
        state.maximum = running[:, :, -1]
        assert total is not None
        x.by_key_head(out)[..., tile.span, :] = tile.cut(total)
    state.rescale(state.maximum)
    maximum = state.maximum.clone(memory_format=torch.contiguous_format)
    return out, State(maximum, state.summed, state.normaliser)


class Trace(NamedTuple):
    """What the sweep over queries leaves for the sweep over keys: O(D) numbers a tile and two a row."""

    span: slice
    segments: list[Segment]
    row_shift: Tensor  # m, (B, Hk, groups, C, 1)
    denominator: Tensor  # (B, Hk, groups, C, 1)


def backward(grad: Tensor, out: Tensor, x: Operands) -> Gradients:
    sequence = Sequence(x)
    dq, dalpha, dbias, traces = _query_gradients(grad, out, sequence)
    dk, dv, dbeta = _key_gradients(grad, out, sequence, traces)
    return dq, dk, dv, dalpha, dbeta, dbias


def _query_gradients(grad: Tensor, out: Tensor, sequence: Sequence) -> tuple[Tensor, Tensor, Tensor, list[Trace]]:
    """da_i = f_i * (S_i t_i - z_i delta_i), in order, since S_i and z_i sum the keys up to i."""
    x = sequence.x
    dq, scale = empty_output(x.q, x.q.shape[-1]), x.by_key_head(x.alpha)
    dscale, doffset = torch.zeros_like(scale), torch.zeros_like(scale)
    state, traces = RunningState(x), []
    for tile in sequence.tiles():
        running, row_shift = state.shifts(tile)
        dout, dot = _row_gradients(grad, out, sequence, tile.span)
        values = tile.v[:, :, None]
        da, denominators, parts = torch.zeros_like(tile.a), torch.zeros_like(row_shift), []
        for segment in segments(running):
            state.rescale(segment.reference)
            f, g = tile.features(segment, row_shift)
            denominator = _denominator(f, (f @ g.mT).tril(), state)
            t, delta = dout / denominator, dot / denominator
            earlier = t @ state.summed[:, :, None].mT - delta * state.normaliser[:, :, None, None]
            da += f * (earlier + (t @ values.mT - delta).tril() @ g)
            denominators = denominator if segment.rows is None else torch.where(
                segment.rows[:, :, None, :, None], denominator, denominators
            )  # fmt: skip
            state.add(g, tile.v)
            parts.append(segment)
        state.maximum = running[:, :, -1]
        traces.append(Trace(tile.span, parts, row_shift, denominators))
        x.by_key_head(dq)[..., tile.span, :] = tile.cut(da * scale[..., None, :])
        dscale += (da * tile.q).sum(dim=-2)
        doffset += da.sum(dim=-2)
    return dq, dscale.flatten(1, 2), doffset.flatten(1, 2), traces


def _key_gradients(grad: Tensor, out: Tensor, sequence: Sequence, traces: list[Trace]) -> tuple[Tensor, Tensor, Tensor]:
    """In reverse, with U_j = sum_{i >= j} f_i t_i^T and y_j = sum_{i >= j} f_i delta_i relative to the segment's reference:

    db_j = g_j * (U_j v_j - y_j),    dv_j = U_j^T g_j
    """
    k, v, beta = sequence.x.k, sequence.x.v, sequence.x.beta
    dk, dv = empty_output(k, k.shape[-1]), empty_output(v, v.shape[-1])
    dbeta = torch.zeros_like(beta)
    later_u, later_y = beta.new_zeros(*beta.shape, v.shape[-1]), torch.zeros_like(beta)
    later_reference = torch.full_like(beta, torch.inf)
    for trace in reversed(traces):
        tile = sequence.tile(trace.span)
        dout, dot = _row_gradients(grad, out, sequence, trace.span)
        t, delta = dout / trace.denominator, dot / trace.denominator
        pairs = (t @ tile.v[:, :, None].mT - delta).tril().flatten(2, 3)  # (B, Hk, groups * C, C)
        t, delta = t.flatten(2, 3), delta.flatten(2, 3)  # the query heads of a key head add up
        db, dvalue = torch.zeros_like(tile.b), torch.zeros_like(tile.v)
        for segment in reversed(trace.segments):
            f, g = tile.features(segment, trace.row_shift)
            weights = (f @ g.mT).tril().flatten(2, 3)
            f, g = f.flatten(2, 3), g[:, :, 0]
            factor = decay(segment.reference, later_reference)
            later_u, later_y, later_reference = later_u * factor[..., None], later_y * factor, segment.reference
            db += g * (tile.v @ later_u.mT - later_y[:, :, None] + pairs.mT @ f)
            dvalue += g @ later_u + weights.mT @ t
            later_u = later_u + f.mT @ t
            later_y = later_y + (f * delta).sum(dim=-2)
        dk[:, :, trace.span] = tile.cut(db * beta[:, :, None])
        dv[:, :, trace.span] = tile.cut(dvalue)
        dbeta += (db * tile.k).sum(dim=-2)
    return dk, dv, dbeta


def segments(running: Tensor) -> Iterator[Segment]:
    """Cut a tile where the running maximum has grown too far; each sample and head is cut where it needs to be."""
    whole = Segment(None, running[:, :, 0])
    if not bool(_outgrown(running, whole.reference).any()):
        yield whole
        return
    size = running.shape[2]
    position = torch.arange(size, device=running.device)
    start = torch.zeros(running.shape[:2], dtype=torch.int64, device=running.device)
    while bool((start < size).any()):
        first = start.clamp(max=size - 1)[..., None, None].expand(-1, -1, 1, running.shape[-1])
        reference = running.gather(2, first)[:, :, 0]
        outgrown = _outgrown(running, reference) & (position > start[..., None])
        stop = torch.where(outgrown.any(dim=-1), outgrown.int().argmax(dim=-1), size)
        yield Segment((position >= start[..., None]) & (position < stop[..., None]), reference)
        start = torch.maximum(stop, start)


def decay(lower: Tensor, upper: Tensor) -> Tensor:
    """exp(lower - upper) <= 1, and 0 where there is no key yet (lower = -inf, whatever it scales is 0 too)."""
    return torch.where(lower == -torch.inf, 0.0, (lower - upper).exp())


def _outgrown(running: Tensor, reference: Tensor) -> Tensor:
    """(B, Hk, C): has any feature grown out of the segment? -inf - -inf is NaN and compares false."""
    return (running - reference[:, :, None] > GROWTH).any(dim=-1)


def _denominator(f: Tensor, weights: Tensor, state: RunningState) -> Tensor:
    denominator = f @ state.normaliser[:, :, None, :, None] + weights.sum(dim=-1, keepdim=True)
    return torch.where(denominator == 0, 1.0, denominator)  # no key yet: the row's numerator is 0 too


def _row_gradients(grad: Tensor, out: Tensor, sequence: Sequence, span: slice) -> tuple[Tensor, Tensor]:
    """dout_i and dout_i . out_i."""
    dout, rows = (sequence.rows(sequence.x.by_key_head(t), span) for t in (grad, out))
    return dout, (dout * rows).sum(dim=-1, keepdim=True)
