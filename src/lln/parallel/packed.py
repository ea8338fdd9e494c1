"""Packed sequences that several processes hold: which of them are here, and which go on elsewhere.

`cu_seqlens` is that of the whole. Each process derives the boundaries of its own stretch, `own_boundaries`, in which the
sequences of other processes are empty. They keep the `cu_seqlens` they were derived from.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from lln.ops.checks import check_boundaries
from lln.parallel.processes import Processes
from lln.parallel.states import Reads, Source


@dataclass(frozen=True)
class Layout:
    """Where the stretches are and where the sequences are, in global positions. Known to every process."""

    cuts: tuple[int, ...]  # 0, n_0, n_0 + n_1, ..., N
    edges: tuple[int, ...]  # cu_seqlens

    @property
    def is_cut_inside_a_sequence(self) -> bool:
        return not set(self.cuts) <= set(self.edges)

    def sequences_of(self, rank: int) -> slice:
        """Those with a token in the stretch; none for an empty one."""
        first, last = self.cuts[rank], self.cuts[rank + 1]
        if first == last:
            return slice(0, 0)
        return slice(bisect_right(self.edges, first) - 1, bisect_right(self.edges, last - 1))

    def ends(self, rank: int) -> list[int]:
        """The sequences at the front and, if it is another one, at the back of the stretch: its channels, in order."""
        mine = self.sequences_of(rank)
        return list(dict.fromkeys([mine.start, mine.stop - 1])) if mine.stop > mine.start else []

    def reads(self, causal: bool) -> Reads:
        """Row 0 of a process is what its front sequence has elsewhere (causal: before), row 1 its back sequence."""
        size = len(self.cuts) - 1
        sent: list[tuple[Source, int]] = [((r, c), s) for r in range(size) for c, s in enumerate(self.ends(r))]

        def elsewhere(rank: int, sequence: int) -> list[Source]:
            return [at for at, s in sent if s == sequence and at[0] != rank and (at[0] < rank or not causal)]

        rows = [[elsewhere(rank, sequence) for sequence in self.ends(rank)] for rank in range(size)]
        return [[*found, [], []][:2] for found in rows]


@dataclass(frozen=True)
class Crossing:
    """The sequences of one stretch."""

    sequences: slice  # which of all
    edges: Tensor  # their boundaries in the stretch, int64 on the CPU
    ends: list[tuple[int, slice]]  # number and tokens of those at the front and at the back

    @staticmethod
    def of(layout: Layout, rank: int) -> "Crossing":
        first, last = layout.cuts[rank], layout.cuts[rank + 1]
        mine = layout.sequences_of(rank)
        inside = [min(max(edge, first), last) - first for edge in layout.edges[mine.start : mine.stop + 1]]
        ends = [(s, slice(inside[s - mine.start], inside[s - mine.start + 1])) for s in layout.ends(rank)]
        return Crossing(mine, torch.tensor(inside), ends)


def own_boundaries(processes: Processes, cu_seqlens: Tensor, length: int) -> Tensor:
    """(S + 1,) boundaries in the stretch of `length` tokens; sequences of other processes are empty."""
    if hasattr(cu_seqlens, _LAYOUT):
        return cu_seqlens
    known: tuple[Processes, int, Tensor] | None = getattr(cu_seqlens, _OWN, None)  # every layer passes the same tensor
    if known is not None and known[0] is processes and known[1] == length:
        return known[2]
    lengths = processes.gather(torch.tensor([length], device=cu_seqlens.device)).flatten().tolist()
    cuts = (0, *accumulate(lengths))
    edges = cu_seqlens.cpu()
    check_boundaries(edges, cuts[-1])
    first, last = cuts[processes.rank], cuts[processes.rank + 1]
    own = (cu_seqlens.to(torch.int64).clamp(first, last) - first).contiguous()
    setattr(own, _LAYOUT, Layout(cuts, tuple(edges.tolist())))
    setattr(cu_seqlens, _OWN, (processes, length, own))
    return own


def layout_of(own: Tensor) -> Layout:
    """What `own_boundaries` was made from."""
    layout: Layout | None = getattr(own, _LAYOUT, None)
    if layout is None:
        raise ValueError(
            "cu_seqlens of a sequence that is cut over processes must come in through an attention function or layer, "
            "which finds the boundaries of this stretch"
        )
    return layout


_LAYOUT, _OWN = "_lln_layout", "_lln_own_boundaries"
