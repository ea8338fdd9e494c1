"""The unmasked tokens of sequences that several processes hold, numbered in order.

Token t of sequence s is its t-th unmasked token, on whatever process it lies. All processes use this numbering. Of sequence
s, process r has the tokens from before[r, s] to before[r + 1, s].
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.moments.sampling import Tokens, middles
from lln.parallel.packed import layout_of
from lln.parallel.processes import Processes


class HeldTokens(NamedTuple):
    """What `lln.ops.moments.sampling.Tokens` is for one process."""

    rank: int
    here: Tokens  # of this stretch
    before: Tensor  # (P + 1, S): how many tokens of a sequence count in the stretches before
    place: (
        Tensor | None
    )  # (B, N): the place among those that count here; None: the position, from the sequence's start on

    @property
    def count(self) -> Tensor:  # type: ignore[override]
        """(S,), in all stretches."""
        return self.before[-1]

    @property
    def segment(self) -> Tensor | None:
        """(N,): which packed sequence a position here is in."""
        return self.here.segment

    @staticmethod
    def of(
        processes: Processes, x: Tensor, lengths: list[int], mask: Tensor | None, own_edges: Tensor | None
    ) -> "HeldTokens":
        """lengths: of all stretches. How many tokens count has to be asked for only where there is a mask."""
        here = Tokens.of(x, mask, own_edges)
        if mask is not None:
            counts = processes.gather(here.count)
        elif own_edges is not None:
            layout = layout_of(own_edges)
            edges, cuts = (torch.tensor(t, device=x.device) for t in (layout.edges, layout.cuts))
            counts = edges.clamp(cuts[:-1, None], cuts[1:, None]).diff(dim=1)
        else:
            counts = torch.tensor(lengths, device=x.device)[:, None].expand(-1, x.shape[0])
        before = torch.cat([torch.zeros_like(counts[:1]), counts.cumsum(dim=0)])
        return HeldTokens(processes.rank, here, before, None if mask is None else mask.cumsum(dim=1) - 1)

    def positions(self, places: int, taken: Tensor) -> Tensor:
        """(S, places): the middles of `taken` (S,) equal stretches of the tokens that count."""
        return middles(places, taken, self.count)

    def best_here(self, score: Tensor, x: Tensor, top: int) -> Tensor:
        """Of the tokens here with the largest scores (B, H, N), largest first, (S, H, top, 3 + D) in float64: the score, the
        token (whole numbers up to 2^53 stay what they are), 1 if there is one, and its row of x (B, H, N, D)."""
        first = self.before[self.rank]
        shape = (len(first), score.shape[1], top)
        if score.shape[2] == 0:
            return score.new_zeros(*shape, 3 + x.shape[-1], dtype=torch.float64)
        at = self.here.largest(score, top)  # positions here
        batch, heads = self.here.batch[:, None, None], torch.arange(score.shape[1], device=score.device)[None, :, None]
        best = torch.where(score.isnan(), -torch.inf, score)[batch, heads, at]
        there = (torch.arange(top, device=score.device) < self.here.count[:, None])[:, None].expand(shape)
        told = torch.stack([best.double(), (self._place(at) + first[:, None, None]).double(), there.double()], dim=-1)
        return torch.cat([told, x[batch, heads, at].double()], dim=-1)

    def best_of_all(self, everyone: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """What `best_here` is on every process, (P, S, H, top, 3 + D) -> tokens (S, H, top), largest first, and their rows."""
        found = everyone.movedim(0, 2).flatten(2, 3)  # (S, H, P top, 3 + D), in the order of ranks
        best, token, there = (found[..., i] for i in range(3))
        order = torch.argsort(best, dim=-1, descending=True, stable=True)
        order = order.gather(-1, torch.argsort(there.gather(-1, order), dim=-1, descending=True, stable=True))
        ranks = torch.arange(top, device=token.device).minimum((self.count[:, None] - 1).clamp_min(0))
        at = order.gather(-1, ranks[:, None].expand(*order.shape[:2], -1))
        rows = found[..., 3:].gather(2, at[..., None].expand(-1, -1, -1, found.shape[-1] - 3))
        return token.long().gather(-1, at), rows

    def locate(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens (S, H, n) -> their positions here (0 where they are not), and whether they are."""
        first, last = (self.before[self.rank + i][:, None, None] for i in (0, 1))
        mine = (tokens >= first) & (tokens < last)
        place = torch.where(mine, tokens - first, 0)
        if self.here.mask is None:
            return torch.where(mine, place + self.here.start[:, None, None], 0), mine
        order = torch.argsort(~self.here.mask, dim=1, stable=True)  # (B, N): positions, those that count first
        if order.shape[1] == 0:
            return place, mine
        return order[:, None].expand(-1, tokens.shape[1], -1).gather(2, place), mine

    def _place(self, position: Tensor) -> Tensor:
        """Positions (S, H, n) here as places among the tokens here that count."""
        if self.place is None:
            return position - self.here.start[:, None, None]
        return self.place[:, None].expand(-1, position.shape[1], -1).gather(2, position)
