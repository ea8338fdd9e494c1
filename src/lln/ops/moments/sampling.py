"""Samples of queries and keys on which the concentration of an attention can be measured.

    keys     `even` of them at the middles of as many equal stretches of the tokens that count, in their order;
             and the `top` to which LLN attention, and the `top` to which softmax attention may be drawn most:
                 m_j = max_l k_jl,    u_j = scale q-.k_j + scale^2/2 sum_l var(q_l) (k_jl - k-_l)^2
             u being the log of the sum of column j of softmax attention, were the queries Gaussian
    queries  evenly by position; or, of several times as many of these, evenly by rank of r_i = sum_l var(k_l) q_il^2,
             which says how widely the logits of a row are spread, and so much of how rows differ
    own      each drawn query's own key: where q = k one key of thousands holds half of a row

A top key and a query's own key stand for themselves, an evenly drawn one for as many as there are of its kind,
(N - tops) / even. With these weights the entropy of a row over all N keys is estimated from the sample. If no more than
`even` keys count, all of them are taken, each for itself.

Nothing is read back from the device: every sample has the same number of places, and those without a token have
weight 0. Which tokens are drawn depends on the tokens that count alone, not on padding or batch mates.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.lln.op import accumulation_dtype
from lln.ops.masks import sequence_of_positions

_SMALLEST_VARIANCE = 1e-30


class Size(NamedTuple):
    """How many evenly drawn keys and top keys (of each kind) a sample has."""

    even: int
    top: int
    most_even: int = 0  # even ones grow with the number of keys N, as N / share, up to this
    share: int = 1

    def even_of(self, keys: Tensor) -> Tensor:
        return torch.minimum(keys, (keys // self.share).clamp(max=self.most_even).clamp_min(self.even))

    def even_at_most(self, keys: int) -> int:
        return min(keys, max(self.even, min(keys // self.share, self.most_even)))


# as in csrc/sample.h
SMALL_KEYS = Size(96, 24)
SOFTMAX_KEYS, LLN_KEYS = Size(128, 64), Size(256, 64, most_even=1024, share=12)
LONG_KEYS = Size(16384, 64)
SPREAD_ROWS = 48  # what means and variances are taken over, with the even keys of SMALL_KEYS
SMALL_ROWS = 24
CANDIDATES = 2  # so many times as many rows by position are ranked


class RowCount(NamedTuple):
    """How many rows a large sample has: a share of the number of keys, within limits."""

    fewest: int
    most: int
    share: int

    def of(self, keys: Tensor) -> Tensor:
        return (keys // self.share).clamp(self.fewest, self.most)

    def at_most(self, keys: int) -> int:
        return min(max(keys // self.share, self.fewest), self.most)


SOFTMAX_ROWS, LLN_ROWS, LONG_ROWS = RowCount(128, 1024, 16), RowCount(128, 128, 16), RowCount(32, 64, 256)


class Rows(NamedTuple):
    """Which queries a sample has: of S sequences and H key heads, R of them."""

    group: Tensor  # (S, H, R): which of the query heads that share the key head
    position: Tensor  # (S, H, R)
    counts: Tensor  # (S, R) bool: which places are taken

    def at(self, places: Tensor, counts: Tensor) -> "Rows":
        """Those at places (S, H, n)."""
        return Rows(self.group.gather(-1, places), self.position.gather(-1, places), counts)


class Sample(NamedTuple):
    """Queries and keys of S sequences and H key heads, in float64 where the device has it."""

    q: Tensor  # (S, H, R, D)
    k: Tensor  # (S, H, M, D), M = even + 2 top
    own: Tensor  # (S, H, R, D): the own key of each query
    weight: Tensor  # (S, H, R, M + 1): for how many keys a key stands in a row, the own key last
    row_counts: Tensor  # (S, R) bool
    keys: Tensor  # (S,): how many keys there are


class Tokens(NamedTuple):
    """Which positions of x (B, H, N, D) count, for each of S sequences."""

    batch: Tensor  # (S,) where along B a sequence is
    start: Tensor  # (S,) its first position
    count: Tensor  # type: ignore[assignment]  # (S,)
    mask: Tensor | None  # (B, N)
    segment: Tensor | None  # (N,) which packed sequence a position is in

    @classmethod
    def of(cls, x: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None) -> "Tokens":
        batch = torch.arange(x.shape[0], device=x.device)
        if cu_seqlens is not None:
            edges = cu_seqlens.to(x.device, torch.int64)
            segment = sequence_of_positions(edges, x.shape[2])
            return cls(torch.zeros_like(edges[1:]), edges[:-1], edges.diff(), None, segment)
        count = torch.full_like(batch, x.shape[2]) if mask is None else mask.sum(dim=1)
        return cls(batch, torch.zeros_like(batch), count, mask, None)

    def positions(self, places: int, taken: Tensor) -> Tensor:
        """(S, places): the middles of `taken` (S,) equal stretches of the tokens that count."""
        ranks = middles(places, taken, self.count)
        if self.mask is None:
            return self.start[:, None] + ranks
        return torch.argsort(~self.mask, dim=1, stable=True).gather(1, ranks)

    def largest(self, score: Tensor, top: int) -> Tensor:
        """(B, H, N) -> positions (S, H, top) of the largest scores, largest first; of equal ones, the earlier."""
        score = torch.where(score.isnan(), -torch.inf, score)
        order = torch.argsort(score, dim=-1, descending=True, stable=True)
        if self.mask is not None:  # what does not count comes after what does, whatever its score
            counts = self.mask[:, None].expand_as(score).gather(-1, order)
            order = order.gather(-1, torch.argsort(~counts, dim=-1, stable=True))
        if self.segment is not None:  # one sequence after the other
            order = order.gather(-1, torch.argsort(self.segment[order], dim=-1, stable=True))
        ranks = torch.arange(top, device=score.device).minimum((self.count[:, None] - 1).clamp_min(0))
        heads = torch.arange(score.shape[1], device=score.device)[None, :, None]
        at = (self.start[:, None] + ranks).clamp(max=score.shape[-1] - 1)
        return order[self.batch[:, None, None], heads, at[:, None]]


def middles(places: int, taken: Tensor, count: Tensor) -> Tensor:
    """Ranks (S, places): the middles of taken (S,) equal stretches of count (S,); places beyond repeat the last."""
    place = torch.arange(places, device=count.device).minimum((taken[:, None] - 1).clamp_min(0))
    return (2 * place + 1) * count[:, None] // (2 * taken[:, None]).clamp_min(1)


def spaced(score: Tensor, counts: Tensor, wanted: Tensor | int, places: int) -> tuple[Tensor, Tensor]:
    """Indices (S, H, places) of rows at equal distances in the order of falling score (S, H, R), and which count (S, places).

    Of equal scores the earlier row comes first; rows whose score is NaN come last, those that do not count (S, R) after all.
    """
    number = counts.sum(dim=1)
    taken = number.clamp(max=wanted)
    score = torch.where(counts[:, None] & ~score.isnan(), score, -torch.inf)
    order = torch.argsort(score, dim=-1, descending=True, stable=True)
    ranks = middles(places, taken, number)[:, None].expand(-1, score.shape[1], -1)
    return order.gather(-1, ranks), torch.arange(places, device=taken.device) < taken[:, None]


class Spread(NamedTuple):
    """Mean and variance of each feature over some queries and keys, (S, H, D) each."""

    mean_q: Tensor
    var_q: Tensor
    mean_k: Tensor
    var_k: Tensor

    def overall(self, center_keys: bool) -> tuple[Tensor, Tensor]:
        """The variances of q and k that eq. 10 asks for, (S, H): that of k about the mean key where keys are centred."""
        of_q = self.var_q + (self.mean_q - self.mean_q.mean(dim=-1, keepdim=True)).square()
        of_k = self.var_k
        if not center_keys:
            of_k = of_k + (self.mean_k - self.mean_k.mean(dim=-1, keepdim=True)).square()
        return of_q.mean(dim=-1), of_k.mean(dim=-1)


class Sampler:
    """Draws samples of q (B, Hq, Nq, D) and k (B, Hk, Nk, D); a key head's queries are those of all its query heads."""

    def __init__(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None, scale: float, center_keys: bool
    ) -> None:
        self.same_tokens = q.shape[2] == k.shape[2]
        self.q, self.k = q.unflatten(1, (k.shape[1], -1)), k  # q: (B, Hk, groups, Nq, D)
        self.groups = self.q.shape[2]
        self.queries = Tokens.of(q, key_mask if self.same_tokens else None, cu_seqlens)
        self.keys = Tokens.of(k, key_mask, cu_seqlens)
        self.heads = torch.arange(k.shape[1], device=k.device)[None, :, None]
        self.length = k.shape[2]
        self.scale, self.center_keys = scale, center_keys
        self.spread = self._spread()
        self.largest = self._largest()

    def rows_by_position(self, places: int, wanted: Tensor | int) -> Rows:
        """In so many places, `wanted` (S,) of them, or as many as there are."""
        row = torch.arange(places, device=self.k.device)
        taken = (self.queries.count * self.groups).clamp(max=wanted)
        position = self.queries.positions(places, taken)[:, None].expand(-1, self.k.shape[1], -1)
        group = (row * ((self.groups - 1) // places + 1) % self.groups).expand_as(position)
        return Rows(group, position, row < taken[:, None])

    def some(self, rows: Rows, score: Tensor, number: RowCount) -> tuple[Rows, Tensor]:
        """So many of the rows, at equal distances in the order of falling score (S, H, R), and their places."""
        places, counts = spaced(score, rows.counts, number.of(self.keys.count), number.at_most(self.length))
        return rows.at(places, counts), places

    def rows_by_rank(self) -> Rows:
        """Of several times as many rows by position, those at equal distances in the order of falling r."""
        wanted, places = SOFTMAX_ROWS.of(self.keys.count), SOFTMAX_ROWS.at_most(self.length)
        all_of = self.rows_by_position(CANDIDATES * places, CANDIDATES * wanted)
        return all_of.at(*spaced(self._logit_spread(all_of), all_of.counts, wanted, places))

    def draw(self, rows: Rows, size: Size) -> Sample:
        """These rows, with as many keys as the size says."""
        even, drawn = self._even(size)
        some = (self.keys.count > size.even_of(self.keys.count))[:, None, None]  # else the even keys are all there are
        by_feature, by_softmax = (x[:, :, : size.top] for x in self.largest)  # (S, H, top) positions
        tops = torch.cat([by_feature, by_softmax], dim=-1)
        first = torch.cat([torch.ones_like(by_feature).bool(), ~_within(by_softmax, by_feature)], dim=-1)
        weight_top = (some & first).to(self.spread.mean_q.dtype)
        even = even[:, None].expand(-1, self.k.shape[1], -1)  # (S, H, even)
        stands = drawn[:, None] & ~(some & _within(even, tops))
        others = self.keys.count[:, None] - weight_top.sum(dim=-1)
        weight_even = stands * (others / stands.sum(dim=-1).clamp_min(1))[..., None]
        places = torch.cat([even, tops], dim=-1)
        weight = torch.cat([weight_even, weight_top], dim=-1)[:, :, None].expand(-1, -1, rows.position.shape[-1], -1)
        own = rows.position if self.same_tokens else even[..., :1].expand_as(rows.position)  # any that counts
        if self.same_tokens:
            weight = torch.where(places[:, :, None] == rows.position[..., None], 0.0, weight)
        weight_own = torch.full_like(weight[..., :1], float(self.same_tokens))
        weight = torch.cat([weight, weight_own], dim=-1)
        queries, keys = self._take(rows, torch.cat([places, own], dim=-1))
        keys = self._clean(keys, self.keys.count[:, None] > 0)
        if self.center_keys:
            keys = keys - self.spread.mean_k[:, :, None]
        drawn_keys, own_keys = keys.split([places.shape[-1], own.shape[-1]], dim=2)
        queries = self._clean(queries, rows.counts)
        return Sample(queries, drawn_keys, own_keys, weight, rows.counts, self.keys.count)

    def _even(self, size: Size) -> tuple[Tensor, Tensor]:
        """Positions (S, even) of the evenly drawn keys, and which of these places are taken."""
        taken, places = size.even_of(self.keys.count), size.even_at_most(self.length)
        place = torch.arange(places, device=self.k.device)
        return self.keys.positions(places, taken), place < taken[:, None]

    def _logit_spread(self, rows: Rows) -> Tensor:
        """r (S, H, R), in units in which nothing overflows, and rounded, so that who summed it makes no difference."""
        of_k, of_q = self.spread.var_k, self.spread.overall(True)[0]
        of_k = of_k / of_k.amax(dim=-1, keepdim=True).clamp_min(_SMALLEST_VARIANCE)
        unit = of_q.clamp_min(_SMALLEST_VARIANCE).rsqrt()[..., None, None]
        queries, _ = self._take(rows, rows.position[..., :0])
        return ((queries.to(unit.dtype) * unit).square() * of_k[:, :, None]).sum(dim=-1).float()

    def _take(self, rows: Rows, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (S, H, R, D), and the keys (S, H, n, D) at positions (S, H, n)."""
        queries = self.q[self.queries.batch[:, None, None], self.heads, *rows[:2]]
        return queries, self.k[self.keys.batch[:, None, None], self.heads, positions]

    def _clean(self, x: Tensor, counts: Tensor) -> Tensor:
        # where nothing counts, what was taken may be padding, which may hold anything
        return torch.where(counts[:, None, :, None], x, 0.0).to(accumulation_dtype(x.device))

    def _spread(self) -> Spread:
        rows = self.rows_by_position(SPREAD_ROWS, SPREAD_ROWS)
        even, drawn = self._even(SMALL_KEYS)
        queries, keys = self._take(rows, even[:, None].expand(-1, self.k.shape[1], -1))
        queries, keys = self._clean(queries, rows.counts), self._clean(keys, drawn)
        return Spread(*_mean_and_variance(queries, rows.counts), *_mean_and_variance(keys, drawn))

    def _largest(self) -> tuple[Tensor, Tensor]:
        """Positions (S, H, top) of the keys with the largest m and u, largest first."""
        m, u = self._key_scores()
        return self.keys.largest(m, LONG_KEYS.top), self.keys.largest(u, LONG_KEYS.top)

    def _key_scores(self) -> tuple[Tensor, Tensor]:
        """m and u of every key, (B, H, N)."""
        x, unit = self.spread, self.spread.overall(True)[1].clamp_min(_SMALLEST_VARIANCE).sqrt()[..., None]
        linear, square = self.scale * x.mean_q * unit, 0.5 * self.scale**2 * x.var_q * unit.square()
        largest = torch.maximum(linear.abs(), square).amax(dim=-1, keepdim=True).clamp_min(_SMALLEST_VARIANCE)
        # only the order of u counts, so it is measured in units in which nothing overflows
        mean, per_unit, linear, square = (
            _of_each_token(t, self.keys) for t in (x.mean_k, 1 / unit, linear / largest, square / largest)
        )
        y = (self.k.to(mean.dtype) - mean) * per_unit
        u = (y * (linear + square * y)).sum(dim=-1)
        return (y if self.center_keys else self.k.to(mean.dtype)).amax(dim=-1), u


def _of_each_token(x: Tensor, tokens: Tokens) -> Tensor:
    """(S, H, D) -> what broadcasts to (B, H, N, D)."""
    return x[:, :, None] if tokens.segment is None else x[tokens.segment].transpose(0, 1)[None]


def _within(positions: Tensor, among: Tensor) -> Tensor:
    """Which of positions (S, H, n) are among (S, H, m)."""
    return (positions[..., :, None] == among[..., None, :]).any(dim=-1)


def _mean_and_variance(x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Of each feature of x (S, H, n, D) over the places that count (S, n)."""
    number = counts.sum(dim=1).clamp_min(1)[:, None, None]
    counts = counts[:, None, :, None]
    mean = torch.where(counts, x, 0.0).sum(dim=2) / number
    return mean, torch.where(counts, (x - mean[:, :, None]).square(), 0.0).sum(dim=2) / number
