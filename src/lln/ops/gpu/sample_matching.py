"""Matching on a sample by the kernels: the order of launches. Sizes and constants are those of `lln.ops.moments`.

    means and variances, scores of keys, their tops, the search on the small sample,
    scores of queries, their order, the search on the large sample where the small one does not suffice

Tops and the order are torch's `topk` and `sort`. Nothing is read back: a program whose head needs no large sample ends at once.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lln.ops.gpu import sample_places, sample_scores, sample_search
from lln.ops.gpu.attention import on
from lln.ops.gpu.plan import Plan
from lln.ops.gpu.sample_places import Tokens
from lln.ops.gpu.tensors import mask, rows
from lln.ops.gpu.tiles import power_of_two
from lln.ops.masks import sequence_of_positions
from lln.ops.moments import search
from lln.ops.moments.op import Matched, MatchOperands
from lln.ops.moments.sampling import LARGE, LONG, SMALL, SPREAD, Size
from lln.ops.moments.table import kept_values, load

STRETCH = 256  # rows whose scores a program computes
TILE = 32

_CONSTANTS = {
    "LOWEST": search.WIDEST[0], "HIGHEST": search.WIDEST[1], "USUAL_SLOPE": search.USUAL_SLOPE,
    "SMALLEST_SLOPE": search.SMALLEST_SLOPE, "SMALLEST_DEFICIT": search.SMALLEST_DEFICIT,
    "SMALLEST_ENTROPY": search.SMALLEST_ENTROPY, "TOLERATED": search.TOLERATED,
    "TOLERATED_SHARE": search.TOLERATED_SHARE, "CLOSE": search.CLOSE, "TRUSTED": search.TRUSTED,
    "USUAL_X": search.USUAL_X,
}  # fmt: skip


class Table(NamedTuple):
    """log2 (s / T) over log2 N and log2 T."""

    ratios: Tensor
    points: int
    lengths: int
    first_t: float
    step_t: float
    first_length: float
    step_length: float

    @staticmethod
    def of(x: MatchOperands) -> "Table":
        ratios = kept_values(x.target, x.q.shape[-1], torch.float64, x.q.device)
        t, length = load()["log2_t"], load()["log2_length"]
        return Table(
            ratios, t["points"], length["points"],
            float(t["first"]), float(t["step"]), float(length["first"]), float(length["step"]),
        )  # fmt: skip


def forward(x: MatchOperands) -> Matched:
    with on(x.q.device):
        return _Match(x).run()


class _Match:
    def __init__(self, x: MatchOperands) -> None:
        self.x = x
        self.same = x.q.shape[2] == x.k.shape[2]
        self.groups = x.q.shape[1] // x.k.shape[1]
        self.heads, self.dim = x.k.shape[1], x.k.shape[3]
        self.boundaries = None if x.cu_seqlens is None else x.cu_seqlens.contiguous()
        self.sequences = x.k.shape[0] if self.boundaries is None else self.boundaries.shape[0] - 1
        self.grid = (self.sequences, self.heads)
        self.keys = self._tokens(x.k, x.key_mask)
        if self.same:
            self.queries = self.keys
        else:
            self.queries = Tokens(None, None, self.boundaries, x.q.shape[2])
        self.sizes = {"D": self.dim, "COLUMNS": power_of_two(self.dim)}
        self.spread = self._empty(*self.grid, 4, self.dim)
        self.start = self._empty(*self.grid, 4)

    def run(self) -> Matched:
        x = self.x
        scaled = {"SCALE": float(x.scale), "CENTERED": x.center_keys}
        sample_scores.spread[self.grid](
            rows(x.q), rows(x.k), self.queries, self.keys, Table.of(x), self.spread, self.start, self.groups,
            **self.sizes, **scaled, ROWS=SPREAD.rows, EVEN=SPREAD.even,
            ROW_PLACES=power_of_two(SPREAD.rows), KEY_PLACES=power_of_two(SPREAD.even), num_warps=8,
        )  # fmt: skip
        tops = self._tops(scaled)
        found = self._empty(*self.grid, 3)
        results = Matched(self._empty(*self.grid), self._empty(*self.grid), self._empty(*self.grid, 2))
        self._search(SMALL, search.SMALL_EVALUATIONS, tops, None, found, results, scaled)
        self._search(LARGE, search.LARGE_EVALUATIONS, tops, self._ranked_queries(), found, results, scaled)
        return results

    def _search(
        self, size: Size, evaluations: int, tops: Tensor, ranked: Tensor | None, found: Tensor, results: Matched,
        scaled: dict[str, Any],
    ) -> None:  # fmt: skip
        x, large = self.x, ranked is not None
        most = tops.shape[-1]
        top, long_top = min(size.top, most), min(LONG.top, most)
        samples = [size.even + 2 * top, LONG.even + 2 * long_top if large else 1]
        places = [self._empty(*self.grid, n, dtype=torch.int32) for n in samples]
        weights = [self._empty(*self.grid, n, dtype=torch.float32) for n in samples]
        of_rows = self._empty(*self.grid, size.most_rows, dtype=torch.float32)
        highest = self._empty(*self.grid, self.dim, dtype=torch.float32)
        sample_search.search[self.grid](
            rows(x.q), rows(x.k), self.queries, self.keys, self.spread, self.start, tops, ranked,
            places[0], weights[0], places[1], weights[1], of_rows, highest, found, *results, self.groups, tops[0].numel(),
            D=self.dim, **scaled, **_CONSTANTS, SAME=self.same, LARGE=large,
            PLACES_OF_ROWS=size.rows_at_most(x.k.shape[2]), ROWS=size.rows, MOST_ROWS=size.most_rows, EVEN=size.even,
            TOP=top, LONG_EVEN=LONG.even, LONG_TOP=long_top, NTH=LARGE.rows // LONG.rows, MOST=most,
            PLACES=power_of_two(max(top, long_top)), EVALUATIONS=evaluations, TILE=TILE, num_warps=8,
        )  # fmt: skip

    def _tops(self, scaled: dict[str, Any]) -> Tensor:
        """(2, S, H, top): the keys with the largest m and the largest u."""
        x = self.x
        plan = Plan.of(x.k, self.boundaries, STRETCH)
        scores = self._empty(2, *x.k.shape[:3], dtype=torch.int64)
        sample_scores.key_scores[(plan.total, self.heads)](
            rows(x.k), mask(x.key_mask), self.spread, self.start, scores, plan.stretches, scores[0].numel(),
            **self.sizes, **scaled, ROWS=TILE, num_warps=8,
        )  # fmt: skip
        top = min(LARGE.top, x.k.shape[2])
        if self.boundaries is None:
            return scores.topk(top, dim=-1).values
        places = (self.boundaries[:-1, None] + torch.arange(top, device=x.k.device)).clamp(max=x.k.shape[2] - 1)
        ordered = self._sequence_by_sequence(scores, self.boundaries, 1)[:, 0]  # (2, H, N)
        return ordered[:, :, places].transpose(1, 2).contiguous()

    def _ranked_queries(self) -> Tensor:
        """(B, H, groups N): r of the queries of a key head, largest first; packed, one sequence after the other."""
        x = self.x
        plan = Plan.of(x.q, self.boundaries, STRETCH)
        scores = self._empty(x.q.shape[0], self.heads, self.groups * x.q.shape[2], dtype=torch.int64)
        sample_scores.query_scores[(plan.total, x.q.shape[1])](
            rows(x.q), mask(x.key_mask if self.same else None), self.spread, self.start, scores, plan.stretches,
            self.groups, **self.sizes, ROWS=TILE, num_warps=8,
        )  # fmt: skip
        if self.boundaries is None:
            return scores.sort(dim=-1, descending=True).values
        return self._sequence_by_sequence(scores, self.boundaries, self.groups)

    def _sequence_by_sequence(self, scores: Tensor, boundaries: Tensor, groups: int) -> Tensor:
        """Scores (..., groups N) from the largest to the smallest inside each packed sequence."""
        ordered = scores.sort(dim=-1, descending=True).values
        position = (0xFFFFFFFF - (ordered & 0xFFFFFFFF)) % (scores.shape[-1] // groups)
        sequence = sequence_of_positions(boundaries, scores.shape[-1] // groups)[position]
        return ordered.gather(-1, sequence.sort(dim=-1, stable=True).indices)

    def _tokens(self, k: Tensor, key_mask: Tensor | None) -> Tokens:
        if key_mask is None:
            return Tokens(None, None, self.boundaries, k.shape[2])
        listed = key_mask.new_empty(key_mask.shape, dtype=torch.int32)
        count = key_mask.new_empty(key_mask.shape[0], dtype=torch.int32)
        sample_places.list_tokens[(key_mask.shape[0],)](mask(key_mask), listed, count, k.shape[2], TILE=1024)
        return Tokens(listed, count, None, k.shape[2])

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return self.x.q.new_empty(shape, dtype=dtype)
