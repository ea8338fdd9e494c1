"""The tokens that count, of sequences that several processes hold, by their place in the order.

Token t of sequence s is the t-th that counts in it, wherever it lies and whatever padding is around: that is how every process
names it. Of sequence s, process r has the tokens from before[r, s] to before[r + 1, s].
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.moments.sampling import Tokens, middles
from lln.parallel.processes import Processes


class HeldTokens(NamedTuple):
    """What `lln.ops.moments.sampling.Tokens` is for one process."""

    processes: Processes
    here: Tokens  # of this stretch
    before: Tensor  # (P + 1, S): how many tokens of a sequence count in the stretches before
    count: Tensor  # type: ignore[assignment]  # (S,), in all stretches
    place: (
        Tensor | None
    )  # (B, N): the place among those that count here; None: the position, from the sequence's start on

    @property
    def segment(self) -> Tensor | None:
        """(N,): which packed sequence a position here is in."""
        return self.here.segment

    @staticmethod
    def of(processes: Processes, x: Tensor, mask: Tensor | None, own_edges: Tensor | None) -> "HeldTokens":
        here = Tokens.of(x, mask, own_edges)
        counts = processes.gather(here.count)
        before = torch.cat([torch.zeros_like(counts[:1]), counts.cumsum(dim=0)])
        return HeldTokens(processes, here, before, before[-1], None if mask is None else mask.cumsum(dim=1) - 1)

    def positions(self, places: int, taken: Tensor) -> Tensor:
        """(S, places): the middles of `taken` (S,) equal stretches of the tokens that count."""
        return middles(places, taken, self.count)

    def largest(self, score: Tensor, top: int) -> Tensor:
        """(B, H, N), of this stretch -> tokens (S, H, top) with the largest scores of all, largest first."""
        first = self.before[self.processes.rank]
        shape = (len(first), score.shape[1], top)
        if score.shape[2]:
            at = self.here.largest(score, top)  # positions here
            batch, heads = (
                self.here.batch[:, None, None],
                torch.arange(score.shape[1], device=score.device)[None, :, None],
            )
            token = self._place(at) + first[:, None, None]
            best = torch.where(score.isnan(), -torch.inf, score)[batch, heads, at].double()
        else:
            token, best = first.new_zeros(shape), score.new_zeros(shape, dtype=torch.float64)
        there = (torch.arange(top, device=score.device) < self.here.count[:, None])[:, None].expand(shape)
        mine = torch.stack(
            [best, token.expand(shape).double(), there.double()]
        )  # whole numbers up to 2^53 stay what they are
        best, token, there = (
            self.processes.gather(mine).movedim(0, -2).flatten(-2)
        )  # (S, H, P top), in the order of ranks
        order = torch.argsort(best, dim=-1, descending=True, stable=True)
        order = order.gather(-1, torch.argsort(there.gather(-1, order), dim=-1, descending=True, stable=True))
        ranks = torch.arange(top, device=score.device).minimum((self.count[:, None] - 1).clamp_min(0))
        return token.long().gather(-1, order).gather(-1, ranks[:, None].expand(shape))

    def locate(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens (S, H, n) -> their positions here (0 where they are not), and whether they are."""
        first, last = (self.before[self.processes.rank + i][:, None, None] for i in (0, 1))
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
        if self.place.shape[1] == 0:
            return position
        return self.place[:, None].expand(-1, position.shape[1], -1).gather(2, position)
