"""The sample on which alpha and beta are matched, drawn from a sequence that several processes hold.

Which queries and keys are drawn depends on their places among the unmasked tokens and on their scores, not on the process that
holds them. Every process determines the same ones, receives them, and computes the same result. They arrive in a few exchanges,
each of which depends on the one before:

    by position   what means and variances are taken over, and the small sample without its top keys
    top keys      the top candidates of every process
    the rest      only if the small sample is not enough: all rows that the large samples may take by position
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.moments.sampling import (
    LLN_KEYS,
    LONG_KEYS,
    SMALL_KEYS,
    SMALL_ROWS,
    SOFTMAX_KEYS,
    SPREAD_ROWS,
    Rows,
    Sampler,
)
from lln.parallel.processes import Processes
from lln.parallel.tokens import HeldTokens


class Known(NamedTuple):
    """Rows that this process knows, by number."""

    numbers: Tensor  # (S, H, n), rising
    rows: Tensor  # (S, H, n, D)

    @staticmethod
    def of(numbers: Tensor, rows: Tensor) -> "Known":
        order = torch.argsort(numbers, dim=-1)
        return Known(numbers.gather(-1, order), rows.gather(2, order[..., None].expand(-1, -1, -1, rows.shape[-1])))

    def with_more(self, numbers: Tensor, rows: Tensor) -> "Known":
        return Known.of(torch.cat([self.numbers, numbers], dim=-1), torch.cat([self.rows, rows], dim=2))

    def at(self, numbers: Tensor) -> Tensor:
        """Rows (S, H, m, D), all of which must be known."""
        place = torch.searchsorted(self.numbers, numbers.contiguous()).clamp(max=self.numbers.shape[-1] - 1)
        return self.rows.gather(2, place[..., None].expand(-1, -1, -1, self.rows.shape[-1]))


class SamplerOver(Sampler):
    """Draws the samples that `Sampler` would draw from the whole."""

    queries: HeldTokens  # type: ignore[assignment]
    keys: HeldTokens  # type: ignore[assignment]

    def __init__(
        self,
        processes: Processes,
        lengths: list[list[int]],
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None,
        own_edges: Tensor | None,
        scale: float,
        center_keys: bool,
    ) -> None:
        """lengths: how many queries and keys each process has, and whether it has a mask."""
        of_queries, of_keys, masked = zip(*lengths, strict=True)
        self.processes, self.length = processes, sum(of_keys)
        self.same_tokens = are_the_same_tokens(list(of_queries), list(of_keys))
        if any(masked) and key_mask is None:
            key_mask = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
        self.q, self.k = q.unflatten(1, (k.shape[1], -1)), k
        self.groups = self.q.shape[2]
        self.keys = self.queries = HeldTokens.of(processes, k, list(of_keys), key_mask, own_edges)
        if not self.same_tokens:
            self.queries = HeldTokens.of(processes, q, list(of_queries), None, own_edges)
        self.heads = torch.arange(k.shape[1], device=k.device)[None, :, None]
        self.scale, self.center_keys = scale, center_keys
        none = self.keys.before.new_zeros(len(self.keys.count), k.shape[1], 0)
        self._known_q = self._known_k = Known(none, k.new_zeros(*none.shape, k.shape[3]))
        small = self.rows_by_position(SMALL_ROWS, SMALL_ROWS)
        self._fetch([self.rows_by_position(SPREAD_ROWS, SPREAD_ROWS), small], [small], [self._even(SMALL_KEYS)[0]])
        self.spread = self._spread()
        self.largest = self._largest()

    def _logit_spread(self, rows: Rows) -> Tensor:
        """Of the rows that the large samples are chosen from: where these begin, all else that they may take is fetched."""
        self._fetch([rows], [rows], [self._even(size)[0] for size in (SOFTMAX_KEYS, LONG_KEYS, LLN_KEYS)])
        return super()._logit_spread(rows)

    def _fetch(self, queries: list[Rows], own: list[Rows], even: list[Tensor]) -> None:
        """In one exchange: these queries, the own keys of those, and the keys at these places (S, n)."""
        rows = Rows(*(torch.cat(t, dim=-1) for t in zip(*queries, strict=True)))
        tokens = [t[:, None].expand(-1, self.k.shape[1], -1) for t in even]
        keys = torch.cat([*tokens, *(r.position for r in own if self.same_tokens)], dim=-1)
        # Of every process what it has, zeros elsewhere: their sum is what was asked for, to the bit.
        row, query_here = self.queries.locate(rows.position)
        place, key_here = self.keys.locate(keys)
        of_q = _where_here(self.q, query_here, self.queries.here.batch, self.heads, rows.group, row)
        of_k = _where_here(self.k, key_here, self.keys.here.batch, self.heads, place)
        both = torch.cat([of_q, of_k], dim=2)
        wide = both if both.dtype == torch.float64 else both.float()
        of_q, of_k = self.processes.add(wide).to(self.k.dtype).split([row.shape[2], place.shape[2]], dim=2)
        self._known_q = self._known_q.with_more(self._number(rows), of_q)
        self._known_k = self._known_k.with_more(keys, of_k)

    def _number(self, rows: Rows) -> Tensor:
        return rows.position * self.groups + rows.group

    def _take(self, rows: Rows, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._known_q.at(self._number(rows)), self._known_k.at(positions)

    def _largest(self) -> tuple[Tensor, Tensor]:
        m, u = self._key_scores()
        own = torch.cat([self.keys.best_here(score, self.k, LONG_KEYS.top) for score in (m, u)], dim=1)
        of_kinds = self.processes.gather(own).chunk(2, dim=2)
        tokens, rows = zip(*(self.keys.best_of_all(everyone, LONG_KEYS.top) for everyone in of_kinds), strict=True)
        self._known_k = self._known_k.with_more(torch.cat(tokens, dim=-1), torch.cat(rows, dim=2).to(self.k.dtype))
        return tokens


def are_the_same_tokens(queries: list[int], keys: list[int]) -> bool:
    """Whether queries and keys are the same tokens, by how many of them every process has."""
    if sum(queries) != sum(keys):
        return False
    if queries != keys:
        raise ValueError(
            f"there are as many queries as keys, {sum(keys)}, but they are cut at different places: into {queries} and {keys}. "
            "Whether they are the same tokens cannot be known; cut them alike"
        )
    return True


def _where_here(x: Tensor, is_here: Tensor, batch: Tensor, *at: Tensor) -> Tensor:
    if x.shape[-2] == 0:
        return x.new_zeros(*is_here.shape, x.shape[-1])
    return torch.where(is_here[..., None], x[batch[:, None, None], *at], 0.0)
