"""Matching on a sample by the kernels: the order of launches. Sizes and constants are those of `lln.ops.moments`.

    means and variances, scores of keys, the largest of them, the search on a small sample, the search on more rows and keys

The largest are found by torch's `topk`. Nothing is read back: a program whose head needs no further search ends at once.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lln.ops.gpu import large_search, sample_places, sample_scores, sample_search
from lln.ops.gpu.attention import on
from lln.ops.gpu.plan import Plan
from lln.ops.gpu.sample_places import Tokens
from lln.ops.gpu.tensors import mask, rows
from lln.ops.gpu.tiles import power_of_two, target_for
from lln.ops.masks import sequence_of_positions
from lln.ops.moments import search
from lln.ops.moments.op import Matched, MatchOperands
from lln.ops.moments.sampling import (
    CANDIDATES,
    LLN_KEYS,
    LLN_ROWS,
    LONG_KEYS,
    LONG_ROWS,
    SMALL_KEYS,
    SMALL_ROWS,
    SOFTMAX_KEYS,
    SOFTMAX_ROWS,
    SPREAD_ROWS,
    Size,
)
from lln.ops.moments.table import kept_values, load

STRETCH = 256  # rows whose scores a program computes
TILE = 32

_CONSTANTS = {
    "LOWEST": search.LOWEST, "STEEPEST": search.STEEPEST, "USUAL_SLOPE": search.USUAL_SLOPE,
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
            **self.sizes, **scaled, ROWS=SPREAD_ROWS, EVEN=SMALL_KEYS.even,
            ROW_PLACES=power_of_two(SPREAD_ROWS), KEY_PLACES=power_of_two(SMALL_KEYS.even), num_warps=8,
        )  # fmt: skip
        tops = self._tops(scaled)
        found = self._empty(*self.grid, 3)
        results = Matched(self._empty(*self.grid), self._empty(*self.grid), self._empty(*self.grid, 2))
        given = (rows(x.q), rows(x.k), self.queries, self.keys, self.spread, self.start, tops)
        options = {"D": self.dim, **scaled, **_CONSTANTS, "SAME": self.same}
        highest = self._empty(*self.grid, self.dim, dtype=torch.float32)
        last = (highest, found, *results, self.groups, tops[0].numel())
        most = tops.shape[-1]
        top = min(SMALL_KEYS.top, most)
        sample_search.small_search[self.grid](
            *given, *self._places(SMALL_KEYS, top), self._empty(1), *last, **options, ROWS=SMALL_ROWS,
            EVEN=SMALL_KEYS.even, TOP=top, MOST=most, EVALUATIONS=search.SMALL_EVALUATIONS,
            TILE=TILE, num_warps=8,
        )  # fmt: skip
        top = min(LONG_KEYS.top, most)
        large_search.large_search[self.grid](
            *given, *self._places(SOFTMAX_KEYS, top), *self._places(LONG_KEYS, top), *self._places(LLN_KEYS, top),
            self._empty(*self.grid, SOFTMAX_ROWS.most * CANDIDATES, dtype=torch.int64),
            self._empty(*self.grid, SOFTMAX_ROWS.most, dtype=torch.int32),
            self._empty(*self.grid, LLN_ROWS.most, dtype=torch.int32),
            self._empty(*self.grid, SOFTMAX_ROWS.most, dtype=torch.float32), *last, **options,
            **self._large_tile(),
            FEWEST_ROWS=SOFTMAX_ROWS.fewest, MOST_ROWS=SOFTMAX_ROWS.most, ROW_SHARE=SOFTMAX_ROWS.share,
            PLACES=CANDIDATES * SOFTMAX_ROWS.at_most(x.k.shape[2]), CANDIDATES=CANDIDATES,
            LONG_FEWEST=LONG_ROWS.fewest, LONG_ROWS=LONG_ROWS.most, LONG_ROW_SHARE=LONG_ROWS.share,
            LLN_FEWEST=LLN_ROWS.fewest, LLN_ROWS=LLN_ROWS.most, LLN_ROW_SHARE=LLN_ROWS.share,
            TOP=top, MOST=most, EVEN=SOFTMAX_KEYS.even, LONG_EVEN=LONG_KEYS.even,
            LONG_MOST=LONG_KEYS.most_even, LONG_SHARE=LONG_KEYS.share, LLN_EVEN=LLN_KEYS.even,
            LLN_MOST=LLN_KEYS.most_even, LLN_SHARE=LLN_KEYS.share, EVALUATIONS=search.LARGE_EVALUATIONS,
        )  # fmt: skip
        return results

    def _large_tile(self) -> dict[str, int]:
        """Rows and keys at a time, and warps: what does not spill. Large tiles do with larger heads, and on sm_100."""
        if self.dim > 64:
            return {"TILE": TILE // 2, "num_warps": 8}
        return {"TILE": TILE // 2 if target_for(self.x.q.device) == "sm_100" else TILE, "num_warps": 4}

    def _places(self, size: Size, top: int) -> tuple[Tensor, Tensor]:
        """For the places of drawn keys, and their weights."""
        shape = (*self.grid, 2 * top + max(size.even, size.most_even))
        return self._empty(*shape, dtype=torch.int32), self._empty(*shape, dtype=torch.float32)

    def _tops(self, scaled: dict[str, Any]) -> Tensor:
        """(2, S, H, top): the keys with the largest m and the largest u."""
        x = self.x
        plan = Plan.of(x.k, self.boundaries, STRETCH)
        scores = self._empty(2, *x.k.shape[:3], dtype=torch.int64)
        sample_scores.key_scores[(plan.total, self.heads)](
            rows(x.k), mask(x.key_mask), self.spread, self.start, scores, plan.stretches, scores[0].numel(),
            **self.sizes, **scaled, ROWS=TILE, num_warps=8,
        )  # fmt: skip
        top = min(LONG_KEYS.top, x.k.shape[2])
        if self.boundaries is None:
            return scores.topk(top, dim=-1).values
        places = (self.boundaries[:-1, None] + torch.arange(top, device=x.k.device)).clamp(max=x.k.shape[2] - 1)
        ordered = self._sequence_by_sequence(scores, self.boundaries)[:, 0]  # (2, H, N)
        return ordered[:, :, places].transpose(1, 2).contiguous()

    def _sequence_by_sequence(self, scores: Tensor, boundaries: Tensor) -> Tensor:
        """Scores (..., N) from the largest to the smallest inside each packed sequence."""
        ordered = scores.sort(dim=-1, descending=True).values
        length = scores.shape[-1]
        position = (0xFFFFFFFF - (ordered & 0xFFFFFFFF)).clamp(max=length - 1)
        sequence = sequence_of_positions(boundaries, length)[position]
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
