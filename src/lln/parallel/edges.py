"""Blocks that lie across a cut: which rows of its neighbours a stretch needs, and the one exchange that brings them.

Blocks of LLN+Diag start at an origin: the sample's first unmasked key, or the start of its packed sequence. If every cut
lies at an origin plus a multiple of the block size, or before the origin, every block is inside a stretch and nothing is sent.
Otherwise each stretch receives the keys, values and mask of the rest of the blocks at its two ends (causal: of the first
one), fewer than block_size rows each; backward, the gradients of those rows go back where they came from.
"""

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lln.parallel.packed import Layout
from lln.parallel.processes import Processes


class Need(NamedTuple):
    """How many rows before and after its own a stretch needs."""

    before: int
    after: int


class Cuts(NamedTuple):
    """Where stretches begin and end, and where the blocks of each sample count from, in global positions."""

    cuts: tuple[int, ...]  # 0, n_0, n_0 + n_1, ..., N
    origins: list[int]  # of each sample

    @staticmethod
    def of(processes: Processes, k: Tensor, key_mask: Tensor | None, filled: list[int | None] | None = None) -> "Cuts":
        """From the lengths and first keys of all; `filled`: slots of an open block that are taken before position 0."""
        batch, length = k.shape[0], k.shape[2]
        first = torch.zeros(batch, dtype=torch.int64, device=k.device)
        if length == 0:
            first -= 1
        elif key_mask is not None:
            first = torch.where(key_mask.any(dim=1), key_mask.int().argmax(dim=1), -1)
        mine = torch.cat([first.new_tensor([length]), first])
        everyone = processes.gather(mine).tolist()
        cuts = (0, *accumulate(row[0] for row in everyone))
        origins = []
        for sample in range(batch):
            found = [cut + row[1 + sample] for cut, row in zip(cuts, everyone, strict=False) if row[1 + sample] >= 0]
            taken = None if filled is None else filled[sample]
            origins.append(-taken if taken is not None else found[0] if found else 0)
        return Cuts(cuts, origins)

    def needs(self, block_size: int, causal: bool) -> list[Need]:
        found = []
        for start, stop in pairwise(self.cuts):
            before = max(_into_block(start, o, block_size) for o in self.origins)
            after = 0 if causal else max(_rest_of_block(stop, o, block_size) for o in self.origins)
            found.append(_of_stretch(start, stop, min(before, start), min(after, self.cuts[-1] - stop)))
        return found


def needs_of_packed(layout: Layout, block_size: int, causal: bool) -> list[Need]:
    found = []
    for rank, (start, stop) in enumerate(pairwise(layout.cuts)):
        ends = layout.ends(rank)
        if not ends:
            found.append(Need(0, 0))
            continue
        before = _into_block(start, layout.edges[ends[0]], block_size)
        rest = _rest_of_block(stop, layout.edges[ends[-1]], block_size)
        found.append(_of_stretch(start, stop, before, 0 if causal else min(rest, layout.edges[ends[-1] + 1] - stop)))
    return found


def _of_stretch(start: int, stop: int, before: int, after: int) -> Need:
    return Need(before, after) if stop > start else Need(0, 0)


def _into_block(position: int, origin: int, block_size: int) -> int:
    """How many rows of its block lie before the position."""
    return (position - origin) % block_size if position > origin else 0


def _rest_of_block(position: int, origin: int, block_size: int) -> int:
    """How many rows are left of the block that the row before the position belongs to."""
    return (origin - position) % block_size if position > origin else 0


class Rows(NamedTuple):
    """Keys, values and which of them count, (B, Hk, rows, ...) and (B, rows)."""

    k: Tensor
    v: Tensor
    counts: Tensor


Wanted = list[tuple[int, int]]  # from where to where, in global positions, one after the other


def exchange(processes: Processes, own: Rows, cuts: tuple[int, ...], needs: list[Need]) -> tuple[Rows, Rows]:
    """The rows before and after this stretch that it needs."""
    wanted = [
        [(start - need.before, start), (stop, stop + need.after)]
        for need, (start, stop) in zip(needs, pairwise(cuts), strict=True)
    ]
    came, before = fetch(processes, own, cuts, wanted), needs[processes.rank].before
    left = Rows(came.k[:, :, :before], came.v[:, :, :before], came.counts[:, :before])
    return left, Rows(came.k[:, :, before:], came.v[:, :, before:], came.counts[:, before:])


def fetch(processes: Processes, own: Rows, cuts: tuple[int, ...], wanted: list[Wanted]) -> Rows:
    """The rows that this process wants of the others; `wanted` is what each wants, outside of its own stretch."""
    k, v, counts = own
    flat = torch.cat([k.movedim(2, 0).flatten(1), v.movedim(2, 0).flatten(1), counts.mT.to(k.dtype)], dim=1)
    sent = [_places(processes.rank, cuts, wanted[rank]) for rank in range(processes.size)]
    received = [_places(rank, cuts, wanted[processes.rank]) for rank in range(processes.size)]
    flat = _Send.apply(flat, processes, sent, received)
    widths = [k.shape[0] * k.shape[1] * k.shape[3], v.shape[0] * v.shape[1] * v.shape[3], k.shape[0]]
    keys, values, mask = flat.split(widths, dim=1)
    return Rows(
        keys.unflatten(1, (k.shape[0], k.shape[1], k.shape[3])).movedim(0, 2),
        values.unflatten(1, (v.shape[0], v.shape[1], v.shape[3])).movedim(0, 2),
        mask.mT > 0,
    )


def _places(owner: int, cuts: tuple[int, ...], wanted: Wanted) -> list[slice]:
    """Which rows of `owner` are wanted, by their place in its stretch."""
    first, last = cuts[owner], cuts[owner + 1]
    overlaps = [(max(a, first) - first, min(b, last) - first) for a, b in wanted]
    return [slice(a, b) for a, b in overlaps if b > a]


class _Send(torch.autograd.Function):
    """Rows (N, width) to whom they are wanted by; what came, in the order of ranks."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, processes: Processes, sent: list[list[slice]], received: list[list[slice]]
    ) -> Tensor:
        ctx.processes, ctx.sent, ctx.received, ctx.shape = processes, sent, received, rows.shape
        leaving = [rows[at] for to_one in sent for at in to_one]
        return processes.send_rows(torch.cat(leaving) if leaving else rows[:0], _numbers(sent), _numbers(received))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        back = ctx.processes.send_rows(grads[0], _numbers(ctx.received), _numbers(ctx.sent))
        total, at = back.new_zeros(ctx.shape), 0
        for to_one in ctx.sent:
            for place in to_one:
                total[place] += back[at : at + place.stop - place.start]
                at += place.stop - place.start
        return total, None, None, None


def _numbers(of_ranks: list[list[slice]]) -> list[int]:
    return [sum(at.stop - at.start for at in places) for places in of_ranks]
