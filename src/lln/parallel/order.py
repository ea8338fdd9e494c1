"""Order statistics of numbers that several processes hold: which is the n-th largest of all?

Each process sorts its own. The value at a rank is found by narrowing an interval of float32 values, 16 times a round, with the
number of larger ones on every process: 8 rounds, whatever the length. Equal values are told apart by where they are.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.moments.sampling import Tokens
from lln.parallel.processes import Processes

WAYS, ROUNDS = 16, 8  # 16^8 = 2^32: all values of float32
_SEGMENT = 1 << 33  # beyond the largest key, so that keys of packed sequences do not mix


class _Sorted(NamedTuple):
    """Keys (B, H, G, N) rise as scores fall, one packed sequence after the other; what does not count comes last."""

    keys: Tensor
    position: Tensor  # where they were, along N
    base: Tensor  # (S,): the key at which a sequence begins

    @staticmethod
    def of(score: Tensor, here: Tokens) -> "_Sorted":
        key = _falling(torch.where(score.isnan(), -torch.inf, score))
        last = _SEGMENT * len(here.start)
        if here.segment is not None:
            key = key + here.segment * _SEGMENT
        if here.mask is not None:
            key = torch.where(here.mask[:, None, None], key, last)
        ordered = torch.sort(key, dim=-1, stable=True)
        sequence = torch.arange(len(here.start), device=score.device)
        base = sequence * _SEGMENT if here.segment is not None else torch.zeros_like(sequence)
        return _Sorted(ordered.values, ordered.indices, base)

    def below(self, key: Tensor) -> Tensor:
        """(S, H, R) keys -> (S, H, G, R): how many here have a smaller key in that sequence, which is a larger score."""
        return self.first_at(key) - self.first_at(torch.zeros_like(key))

    def first_at(self, key: Tensor) -> Tensor:
        """Where the first key that is not smaller stands, in the sorted order."""
        wanted = self.base[:, None, None] + key  # (S, H, R)
        batch, groups = self.keys.shape[0], self.keys.shape[2]
        sequences, _, ranks = wanted.shape
        if batch != sequences:  # packed: all sequences are in one row
            wanted = wanted.transpose(0, 1).flatten(1)[None]  # (1, H, S R)
        wanted = wanted[:, :, None].expand(-1, -1, groups, -1).contiguous()
        found = torch.searchsorted(self.keys.contiguous(), wanted)
        if batch == sequences:
            return found
        return found[0].unflatten(-1, (sequences, ranks)).permute(2, 0, 1, 3)


def at_ranks(processes: Processes, score: Tensor, ranks: Tensor, here: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """Where ranks (S, H, R) of the falling order of score (B, H, G, N) are: (group, position), where this process has them.

    Equal scores come in the order of groups, in a group in that of tokens. The last result says which of them are here.
    """
    ordered = _Sorted.of(score.float(), here)
    low = torch.zeros_like(ranks)
    step = torch.full_like(ranks, WAYS ** (ROUNDS - 1))
    for _ in range(ROUNDS):  # the largest key of which no more than `ranks` are smaller
        tried = low[..., None] + step[..., None] * torch.arange(1, WAYS, device=ranks.device)  # (S, H, R, 15)
        smaller = processes.add(ordered.below(tried.flatten(2)).sum(dim=2)).view_as(tried)
        low = low + step * (smaller <= ranks[..., None]).sum(dim=-1)
        step = step // WAYS
    smaller, upto = ordered.below(low), ordered.below(low + 1)  # (S, H, G, R)
    equal = processes.gather(upto - smaller)  # (P, S, H, G, R)
    index = ranks - processes.add(smaller.sum(dim=2))  # among the equal ones
    by_group = equal.movedim(3, 0).flatten(0, 1)  # (G P, S, H, R): groups first, then processes
    ends = by_group.cumsum(dim=0)
    owner = (ends <= index).sum(dim=0).clamp(max=len(ends) - 1)  # (S, H, R)
    group, mine = owner // processes.size, owner % processes.size == processes.rank
    among = index - (ends - by_group).gather(0, owner[None])[0]
    at = (ordered.first_at(low).gather(2, group[:, :, None])[:, :, 0] + among).clamp(0, max(0, score.shape[-1] - 1))
    if score.shape[-1] == 0:
        return group, at, torch.zeros_like(mine)
    batch, heads = here.batch[:, None, None], torch.arange(score.shape[1], device=score.device)[None, :, None]
    return group, ordered.position[batch, heads, group, at], mine


def _falling(x: Tensor) -> Tensor:
    """float32 as whole numbers from 0 to 2^32 - 1 that fall as x rises; -0.0 is 0.0."""
    bits = (x + 0.0).contiguous().view(torch.int32).long()
    unsigned = torch.where(bits >= 0, bits, bits + (1 << 32))
    rising = torch.where(bits >= 0, unsigned + (1 << 31), (1 << 32) - 1 - unsigned)
    return (1 << 32) - 1 - rising
