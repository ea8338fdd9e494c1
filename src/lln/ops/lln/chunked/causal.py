"""Causal LLN attention tile by tile, in linear time, with no shift that depends on a later key and no value read back.

With a_i = alpha q_i + w, b_j = beta k_j and the running maximum M_i = max_{j <= i} b_j (per feature), row i has the features
h_i = exp(a_i + M_i - m_i), m_i = max_l (a_il + M_il). Its keys come in three kinds.

    earlier tiles     through their sums S, z relative to r, the running maximum before the tile:
                      f_i = h_i exp(r - M_i)
    the same tile     by halves: for blocks of 32, 16, ..., 1 rows, a row of a second half sees the keys of the first half
                      relative to r, the running maximum at the end of that half:
                      f_i = h_i exp(r - M_i),  g_j = exp(b_j - r),  s_ij = f_i . g_j
    itself            s_ii = h_i . exp(b_i - M_i)

Since b_j <= r <= M_i, every exponential is at most 1, whatever the inputs, and the denominator, which has the largest
term of all, is at least 1. A row meets no later key at all, not even with weight 0, so neither bits nor NaN come from the
future. The large numbers a_i + M_i are rounded once, in h_i, for all keys alike, so that the rounding of a feature that
rules the row cancels. A tile is summed in the compute dtype and the tiles in float64, so that no error grows with the length.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.lln.chunked.tiles import decay, finite, join, wide, wide_zeros
from lln.ops.lln.op import Operands, State

TILE = 64
TILES_AT_ONCE = 16  # of each head; bounds the states and the features that are in memory


class Stretch(NamedTuple):
    """A few tiles (T of C rows) in the compute dtype, without the keys that do not count."""

    q: Tensor  # (B, Hk, groups, T, C, D)
    a: Tensor  # (B, Hk, groups, T, C, D)
    k: Tensor  # (B, Hk, T, C, D)
    b: Tensor  # (B, Hk, T, C, D), -inf for keys that do not count
    v: Tensor  # (B, Hk, T, C, Dv)
    running: Tensor  # max of b up to each row of its tile, (B, Hk, T, C, D); a constant
    first: int  # the number of its first tile

    def tile_states(self) -> State:
        """c, S and z of each tile by itself, (B, Hk, T, ...)."""
        maximum = self.running[..., -1, :]
        g = (self.b - finite(maximum)[..., None, :]).exp()
        return State(maximum, g.mT @ self.v, g.sum(dim=-2))


class Sequence(NamedTuple):
    """The operands in stretches of tiles. Packed sequences start at tile boundaries and have `sequence`, one number a tile."""

    x: Operands
    sequence: Tensor | None = None

    @property
    def rows(self) -> int:
        """A single step from a state, as in decoding, is not worth a whole tile."""
        return 1 if self.x.start is not None and self.x.q.shape[2] == 1 else TILE

    @property
    def tiles(self) -> int:
        return -(-self.x.q.shape[2] // self.rows)

    def read(self, t: Tensor, first: int) -> Tensor:
        """The rows of a stretch, (..., T, C, D), filled up with zeros to whole tiles."""
        count = min(TILES_AT_ONCE, self.tiles - first) * self.rows
        rows = t[..., first * self.rows : first * self.rows + count, :].to(self.x.beta.dtype)
        missing = count - rows.shape[-2]
        if missing:
            rows = torch.nn.functional.pad(rows, (0, 0, 0, missing))
        return rows.unflatten(-2, (-1, self.rows))

    def tiles_of(self, t: Tensor, counts: Tensor | None, first: int) -> Tensor:
        """`read`, zero for keys that do not count; in one layout, since products of others may differ in their last bits."""
        rows = self.read(t, first)
        return (rows if counts is None else torch.where(counts, rows, 0.0)).contiguous()

    def scale(self, t: Tensor, first: int) -> Tensor:
        """alpha, beta or bias (S, H, D) for the tiles of a stretch, (B, H, T or 1, 1, D)."""
        if self.sequence is None:
            return t[:, :, None, None]
        return t[self.sequence[first : first + TILES_AT_ONCE]].transpose(0, 1)[None, :, :, None]

    def summed_over_tiles(self, t: Tensor, first: int, total: Tensor) -> Tensor:
        """Adds (B, H, T, D) to a sum of shape (S, H, D)."""
        if self.sequence is None:
            return total + wide(t).sum(dim=2)
        return total.index_add(0, self.sequence[first : first + TILES_AT_ONCE], wide(t)[0].transpose(0, 1))

    def counts(self, first: int) -> Tensor | None:
        """(B or 1, 1, T, C, 1), True for the keys that count; None when all do."""
        length = self.x.k.shape[2]
        tiles = min(TILES_AT_ONCE, self.tiles - first)
        start, stop = first * self.rows, (first + tiles) * self.rows
        if self.x.key_mask is not None:
            counts = torch.nn.functional.pad(self.x.key_mask[:, start:stop], (0, max(stop - length, 0)))
        elif stop > length:
            counts = (torch.arange(start, stop, device=self.x.k.device) < length)[None]
        else:
            return None
        return counts.unflatten(1, (-1, self.rows))[:, None, :, :, None]

    def stretch(self, first: int) -> Stretch:
        x = self.x
        q = self.tiles_of(x.by_key_head(x.q), None, first)
        a = q * self._by_key_head(self.scale(x.alpha, first))
        if x.bias is not None:
            a = a + self._by_key_head(self.scale(x.bias, first))
        counts = self.counts(first)
        k, v = self.tiles_of(x.k, counts, first), self.tiles_of(x.v, counts, first)
        b = k * self.scale(x.beta, first)
        if counts is not None:
            b = torch.where(counts, b, -torch.inf)
        return Stretch(q, a, k, b, v, b.detach().cummax(dim=-2).values, first)

    def stretches(self) -> Iterator[Stretch]:
        for first in range(0, self.tiles, TILES_AT_ONCE):
            yield self.stretch(first)

    def starts(self, tile: int) -> Tensor | None:
        """Whether a sequence starts with this tile: a tensor where they are packed, since nobody reads the boundaries."""
        if self.sequence is None or tile == 0:
            return None
        return self.sequence[tile] != self.sequence[tile - 1]

    def of_tile(self, state: State, tile: int) -> State:
        """The entries of a tile's sequence, of a state with one row a sequence."""
        if self.sequence is None:
            return state
        return State(*(t.index_select(0, self.sequence[tile : tile + 1]) for t in state))

    def anew(self, fresh: Tensor | None, all_sequences: State, state: State, tile: int) -> State:
        """`state`, or what `all_sequences` has for the tile's sequence where that is `fresh`."""
        if fresh is None:
            return state
        return State(*(torch.where(fresh, n, t) for n, t in zip(self.of_tile(all_sequences, tile), state, strict=True)))

    def kept(self, all_sequences: State, state: State, tile: int) -> State:
        """`all_sequences` with the state of a tile's sequence in its place, whatever was there."""
        if self.sequence is None:
            return state
        at = self.sequence[tile : tile + 1]
        return State(*(t.index_copy(0, at, n) for t, n in zip(all_sequences, state, strict=True)))

    def _by_key_head(self, t: Tensor) -> Tensor:
        return t.unflatten(1, (self.x.k.shape[1], -1))


class Prefix:
    """The sums over all keys before a tile, carried from tile to tile."""

    def __init__(self, sequence: Sequence) -> None:
        x = sequence.x
        begin = x.start or State.without_keys(x.beta, x.v.shape[-1])
        self.sequence, self.dtype = sequence, x.beta.dtype
        self.begin = State(begin.maximum.detach(), wide(begin.summed), wide(begin.normaliser))
        self.state, self.final = sequence.of_tile(self.begin, 0), self.begin

    def before(self, stretch: Stretch) -> State:
        """The state before each tile of the stretch, (B, Hk, T, ...); afterwards the stretch is part of the prefix."""
        parts, found = stretch.tile_states(), []
        for i in range(stretch.k.shape[2]):
            tile = stretch.first + i
            self.state = self.sequence.anew(self.sequence.starts(tile), self.begin, self.state, tile)
            found.append(self.state.with_sums_in(self.dtype))
            self.state = _joined(self.state, State(*(t[:, :, i] for t in parts)))
            self.final = self.sequence.kept(self.final, self.state, tile)
        return State(*(torch.stack(t, dim=2) for t in zip(*found, strict=True)))


def _joined(state: State, part: State) -> State:
    """The sums over the keys of both."""
    maximum = torch.maximum(state.maximum, part.maximum)
    kept, moved = decay(state.maximum, maximum), decay(part.maximum, maximum)
    summed = state.summed * kept[..., None] + part.summed * moved[..., None]
    return State(maximum, summed, state.normaliser * kept + part.normaliser * moved)


class Half(NamedTuple):
    """All pairs of halves of one size: rows of second halves, which see the keys of first halves."""

    rows: int

    def first(self, x: Tensor) -> Tensor:
        """(..., C, D) to the first halves (..., pairs, h, D)."""
        return x.unflatten(-2, (-1, 2, self.rows))[..., 0, :, :]

    def second(self, x: Tensor) -> Tensor:
        return x.unflatten(-2, (-1, 2, self.rows))[..., 1, :, :]

    def into(self, first: Tensor | None, second: Tensor | None) -> Tensor:
        """(..., C, D) from its halves; None is zero."""
        given = first if first is not None else second
        assert given is not None
        zero = torch.zeros_like(given)
        halves = [zero if half is None else half for half in (first, second)]
        return torch.stack(halves, dim=-3).flatten(-4, -2)

    def features(self, stretch: Stretch, rows: "Rows") -> tuple[Tensor, Tensor]:
        """f (B, Hk, groups, T, pairs, h, D) and g (B, Hk, T, pairs, h, D)."""
        reference = self.first(rows.running)[..., -1:, :]  # (B, Hk, T, pairs, 1, D)
        f = self.second(rows.top) * decay(reference, self.second(rows.running))[:, :, None]
        return f, (self.first(stretch.b) - finite(reference)).exp()


def halves(rows: int) -> Iterator[Half]:
    while rows > 1:
        rows //= 2
        yield Half(rows)


class Rows(NamedTuple):
    """The features of the rows of a stretch."""

    running: Tensor  # M, (B, Hk, T, C, D)
    top: Tensor  # h, towards keys at the running maximum, (B, Hk, groups, T, C, D)
    f: Tensor  # towards the state before the tile, likewise
    own: Tensor  # h exp(b_i - M_i), likewise

    @staticmethod
    def of(stretch: Stretch, before: Tensor) -> "Rows":
        running = torch.maximum(stretch.running, before[..., None, :])
        exponent = stretch.a + running[:, :, None]
        top = (exponent - finite(exponent.detach().amax(dim=-1, keepdim=True))).exp()
        f = top * decay(before[..., None, :], running)[:, :, None]
        return Rows(running, top, f, top * (stretch.b - finite(running)).exp()[:, :, None])


def forward(sequence: Sequence) -> tuple[Tensor, State]:
    """(B, Hq, N, Dv) and the final state."""
    prefix, out = Prefix(sequence), []
    for stretch in sequence.stretches():
        before = prefix.before(stretch)
        rows = Rows.of(stretch, before.maximum)
        numerator, denominator = _sums(stretch, rows, before)
        out.append((numerator / denominator).flatten(1, 2).flatten(2, 3))  # (B, Hq, T * C, Dv)
    return join_stretches(out, sequence.x.q), prefix.final


def _sums(stretch: Stretch, rows: Rows, before: State) -> tuple[Tensor, Tensor]:
    """sum_j s_ij v_j (B, Hk, groups, T, C, Dv) and sum_j s_ij (..., 1)."""
    values = stretch.v[:, :, None]
    own = rows.own.sum(dim=-1, keepdim=True)
    numerator = rows.f @ before.summed[:, :, None] + own * values
    denominator = rows.f @ before.normaliser[:, :, None, :, :, None] + own
    for half in halves(stretch.k.shape[-2]):
        f, g = half.features(stretch, rows)
        weights = f @ g[:, :, None].mT  # (B, Hk, groups, T, pairs, h, h)
        numerator = numerator + half.into(None, weights @ half.first(values))
        denominator = denominator + half.into(None, weights.sum(dim=-1, keepdim=True))
    return numerator, torch.where(denominator == 0, 1.0, denominator)  # no key yet: the numerator is 0 too


class Trace(NamedTuple):
    """What the pass over keys needs to know from the pass over queries, for one stretch."""

    first: int
    before: Tensor  # the running maximum before each tile, (B, Hk, T, D)
    denominator: Tensor  # (B, Hk, groups, T, C, 1)


def backward(
    grad: Tensor, out: Tensor, sequence: Sequence, end: Tensor, final: tuple[Tensor | None, Tensor | None]
) -> dict[str, Tensor]:
    """`end`: the final maximum; `final`: the gradients of the final sums and normaliser relative to it, if any came."""
    gradients, traces = _query_gradients(grad, out, sequence)
    return gradients | _key_gradients(grad, out, sequence, traces, end, final)


def _query_gradients(grad: Tensor, out: Tensor, sequence: Sequence) -> tuple[dict[str, Tensor], list[Trace]]:
    """da_i = sum over the three kinds of keys of f_i * (sum_j g_j (t_i . v_j - delta_i))."""
    x = sequence.x
    prefix, traces, dq = Prefix(sequence), [], []
    dalpha, dbias = wide_zeros(x.alpha), wide_zeros(x.alpha)
    for stretch in sequence.stretches():
        before = prefix.before(stretch)
        rows = Rows.of(stretch, before.maximum)
        _, denominator = _sums(stretch, rows, before)
        t, delta = _row_gradients(grad, out, sequence, stretch.first, denominator)
        values = stretch.v[:, :, None]
        da = rows.f * (t @ before.summed[:, :, None].mT - delta * before.normaliser[:, :, None, :, None])
        da = da + rows.own * ((t * values).sum(dim=-1, keepdim=True) - delta)
        for half in halves(stretch.k.shape[-2]):
            f, g = half.features(stretch, rows)
            pairs = half.second(t) @ half.first(values).mT - half.second(delta)
            da = da + half.into(None, f * (pairs @ g[:, :, None]))
        traces.append(Trace(stretch.first, before.maximum, denominator))
        by_head, scale = da.flatten(1, 2), sequence.scale(x.alpha, stretch.first)
        dq.append((by_head * scale).flatten(2, 3))
        dalpha = sequence.summed_over_tiles((da * stretch.q).flatten(1, 2).sum(dim=-2), stretch.first, dalpha)
        dbias = sequence.summed_over_tiles(by_head.sum(dim=-2), stretch.first, dbias)
    of_scales = {"alpha": dalpha.to(x.alpha.dtype), "bias": dbias.to(x.alpha.dtype)}
    return {"q": join_stretches(dq, x.q), **of_scales}, traces


class Suffix:
    """The gradient of the sums over keys, from all rows after a tile and from the final state, carried from tile to tile.

    U = sum_i f_i t_i^T and y = -sum_i f_i delta_i, relative to the running maximum after the tile.
    """

    def __init__(self, sequence: Sequence, end: Tensor, final: tuple[Tensor | None, Tensor | None]) -> None:
        x = sequence.x
        zeros = State.without_keys(x.beta, x.v.shape[-1])[1:]
        sums = (wide_zeros(z) if own is None else wide(own) for z, own in zip(zeros, final, strict=True))
        self.sequence, self.dtype, self.end = sequence, x.beta.dtype, State(end, *sums)
        self.gradient = sequence.of_tile(self.end, sequence.tiles - 1)
        self.begin = self.end  # the gradient of the starting state; a packed sequence may have no rows that change it

    def after(self, stretch: Stretch, parts: State) -> State:
        """The gradient of the state after each tile; afterwards the rows of the stretch, `parts`, are part of the suffix."""
        found = []
        for i in reversed(range(stretch.k.shape[2])):
            tile = stretch.first + i
            ends = self.sequence.starts(tile + 1) if tile + 1 < self.sequence.tiles else None
            self.gradient = self.sequence.anew(ends, self.end, self.gradient, tile)
            found.append(self.gradient.with_sums_in(self.dtype))
            self.gradient = self._with_rows(State(*(t[:, :, i] for t in parts)))
            self.begin = self.sequence.kept(self.begin, self.gradient, tile)
        return State(*(torch.stack(t[::-1], dim=2) for t in zip(*found, strict=True)))

    def _with_rows(self, part: State) -> State:
        """The gradient of the state before a tile, from that after it and from the tile's rows."""
        reference, summed, normaliser = self.gradient
        kept = decay(part.maximum, reference)
        return State(part.maximum, summed * kept[..., None] + part.summed, normaliser * kept + part.normaliser)


def _key_gradients(
    grad: Tensor,
    out: Tensor,
    sequence: Sequence,
    traces: list[Trace],
    end: Tensor,
    final: tuple[Tensor | None, Tensor | None],
) -> dict[str, Tensor]:
    """In reverse. db_j = sum over the three kinds of rows of g_j * (sum_i f_i (t_i . v_j - delta_i)), and dv_j likewise."""
    x = sequence.x
    suffix, dbeta = Suffix(sequence, end, final), wide_zeros(x.beta)
    dk, dv = [], []
    for trace in reversed(traces):
        stretch = sequence.stretch(trace.first)
        rows = Rows.of(stretch, trace.before)
        t, delta = _row_gradients(grad, out, sequence, trace.first, trace.denominator)
        values = stretch.v[:, :, None]
        f = rows.f.transpose(2, 3).flatten(3, 4)  # (B, Hk, T, groups * C, D): the query heads of a key head add up
        all_t, all_delta = (y.transpose(2, 3).flatten(3, 4) for y in (t, delta))
        parts = State(trace.before, f.mT @ all_t, -(f * all_delta).sum(dim=-2))
        after = suffix.after(stretch, parts)
        g = (stretch.b - finite(after.maximum)[..., None, :]).exp()
        db = g * (stretch.v @ after.summed.mT + after.normaliser[..., None, :])
        dvalue = g @ after.summed
        pair = (t * values).sum(dim=-1, keepdim=True) - delta
        db = db + (rows.own * pair).sum(dim=2)
        dvalue = dvalue + (rows.own.sum(dim=-1, keepdim=True) * t).sum(dim=2)
        for half in halves(stretch.k.shape[-2]):
            f, g = half.features(stretch, rows)
            later_t = half.second(t)
            pairs = later_t @ half.first(values).mT - half.second(delta)  # (B, Hk, groups, T, pairs, h, h)
            db = db + half.into(g * (pairs.mT @ f).sum(dim=2), None)
            dvalue = dvalue + half.into(((f @ g[:, :, None].mT).mT @ later_t).sum(dim=2), None)
        dk.append((db * sequence.scale(x.beta, trace.first)).flatten(2, 3))
        dv.append(dvalue.flatten(2, 3))
        dbeta = sequence.summed_over_tiles((db * stretch.k).sum(dim=-2), trace.first, dbeta)
    found = {"k": join_stretches(dk[::-1], x.k), "v": join_stretches(dv[::-1], x.v), "beta": dbeta.to(x.beta.dtype)}
    if x.start is not None:
        of_start = suffix.begin.with_sums_in(x.sums_dtype)
        found |= {"start_summed": of_start.summed, "start_normaliser": of_start.normaliser}
    return found


def _row_gradients(
    grad: Tensor, out: Tensor, sequence: Sequence, first: int, denominator: Tensor
) -> tuple[Tensor, Tensor]:
    """t_i = dout_i / den_i and delta_i = dout_i . out_i / den_i, (B, Hk, groups, T, C, Dv or 1)."""
    dout, rows = (sequence.read(sequence.x.by_key_head(t), first) for t in (grad, out))
    return dout / denominator, (dout * rows).sum(dim=-1, keepdim=True) / denominator


def join_stretches(pieces: list[Tensor], like: Tensor) -> Tensor:
    """Stretches of any number of rows as (B, H, N, E), in the dtype and the layout of `like`."""
    return join([pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)], like)
