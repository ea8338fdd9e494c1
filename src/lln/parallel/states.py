"""States of several stretches merged into one, and its gradient: the whole exchange of LLN attention.

With b_j = beta k_j, stretch r has c_r = max_j b_j, S_r = sum_j exp(b_j - c_r) v_j^T and z_r = sum_j exp(b_j - c_r) over its own
keys. A set R of stretches, and perhaps a starting state, together have

    c = max_r c_r,    S = sum_r exp(c_r - c) S_r,    z = sum_r exp(c_r - c) z_r

added in the order of ranks, in float64. Which R: all stretches for bidirectional attention, those before for causal attention.
Every process sends (c_r, S_r, z_r), D (Dv + 2) numbers per sample and head. Backward, a process whose queries have read a set R
has dS and dz of its sum; it sends these, D (Dv + 1) numbers, and stretch r adds up what its readers have sent:

    dS_r = sum over readers of exp(c_r - c_reader) dS_reader,    dz_r likewise

The maxima are treated as constants everywhere, because they cancel.

A process may send several states side by side, its channels (packed sequences: the one at its front and the one at its back),
and read several sums, its rows. `Reads` says which row is the sum of which channels of which stretches.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lln.ops.lln.chunked.tiles import decay
from lln.ops.lln.op import State, accumulation_dtype
from lln.parallel.processes import Gathering, Processes

Source = tuple[int, int]  # rank and channel
Reads = list[list[list[Source]]]  # of each process, of each of its rows: the states that it is the sum of, in order


class Exchange:
    """The states (channels, B, Hk, D, ...) of every process, under way from the moment it is made."""

    def __init__(self, processes: Processes, own: State) -> None:
        self.processes, self.own = processes, own
        parts = (own.summed, own.normaliser[..., None], own.maximum[..., None])
        self._gathering: Gathering | None = processes.begin_gather(torch.cat([t.detach() for t in parts], dim=-1))
        self._gathered: State | None = None

    @property
    def gathered(self) -> State:
        """(P, channels, B, Hk, D, ...)."""
        if self._gathering is not None:
            everyone = self._gathering.wait()
            self._gathered = State(everyone[..., -1], everyone[..., :-2], everyone[..., -2])
            self._gathering = None
        assert self._gathered is not None
        return self._gathered

    def merged(self, reads: Reads, start: State | None = None) -> State:
        """The rows (rows, B, Hk, D, ...) of this process, its sums in the accumulation dtype; `start` is in each of them."""
        given = (None, None, None) if start is None else start
        return State(*_Merge.apply(self.own.summed, self.own.normaliser, *given, self.gathered, self.processes, reads))


class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        summed: Tensor,
        normaliser: Tensor,
        start_maximum: Tensor | None,
        start_summed: Tensor | None,
        start_normaliser: Tensor | None,
        gathered: State,
        processes: Processes,
        reads: Reads,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.processes, ctx.reads = processes, reads
        ctx.dtypes = (summed.dtype, None if start_summed is None else start_summed.dtype)
        ctx.maxima, ctx.start_maximum = gathered.maximum, start_maximum
        references = [_reference(ctx.maxima, sources, start_maximum) for sources in reads[processes.rank]]
        ctx.references = references
        dtype = accumulation_dtype(summed.device)
        rows = []
        for sources, reference in zip(reads[processes.rank], references, strict=True):
            total = torch.zeros_like(summed[0], dtype=dtype), torch.zeros_like(normaliser[0], dtype=dtype)
            if start_maximum is not None and start_summed is not None and start_normaliser is not None:
                kept = decay(start_maximum, reference).to(dtype)
                total = start_summed.to(dtype) * kept[..., None], start_normaliser.to(dtype) * kept
            for at in sources:
                kept = decay(gathered.maximum[at], reference).to(dtype)
                total = total[0] + gathered.summed[at] * kept[..., None], total[1] + gathered.normaliser[at] * kept
            rows.append(total)
        maximum = torch.stack(references)
        ctx.mark_non_differentiable(maximum)
        return maximum, torch.stack([s for s, _ in rows]), torch.stack([z for _, z in rows])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        _, dsummed, dnormaliser = grads
        processes, reads, dtype = ctx.processes, ctx.reads, ctx.dtypes[0]
        sent = torch.cat([dsummed, dnormaliser[..., None]], dim=-1)
        everyone = processes.gather(sent.to(dtype))  # (P, rows, B, Hk, D, Dv + 1)
        of_channels = []
        for channel in range(ctx.maxima.shape[1]):
            mine = (processes.rank, channel)
            total = torch.zeros_like(sent[0])
            for reader, rows in enumerate(reads):
                for row, sources in enumerate(rows):
                    if mine in sources:
                        reference = _reference(ctx.maxima, sources, ctx.start_maximum)
                        total = total + everyone[reader, row] * decay(ctx.maxima[mine], reference)[..., None]
            of_channels.append(total)
        own = torch.stack(of_channels).to(dtype)
        of_start: tuple[Tensor | None, Tensor | None] = (None, None)
        if ctx.start_maximum is not None:  # every process has it, and its part of the gradient
            kept = [decay(ctx.start_maximum, reference) for reference in ctx.references]
            part = sum(g * k[..., None] for g, k in zip(sent, kept, strict=True)).to(ctx.dtypes[1])  # type: ignore[union-attr]
            of_start = (part[..., :-1], part[..., -1])
        return own[..., :-1], own[..., -1], None, *of_start, None, None, None


def _reference(maxima: Tensor, sources: list[Source], start: Tensor | None) -> Tensor:
    """c of a row: the largest maximum among its states; -inf where it has none."""
    largest = torch.full_like(maxima[0, 0], -torch.inf) if start is None else start
    for at in sources:
        largest = torch.maximum(largest, maxima[at])
    return largest


class Everyone(NamedTuple):
    """Who reads whom when each process has one channel and one row."""

    all: Reads
    before: Reads

    @staticmethod
    def of(size: int) -> "Everyone":
        whole: list[Source] = [(r, 0) for r in range(size)]
        return Everyone([[whole] for _ in range(size)], [[whole[:r]] for r in range(size)])


__all__ = ["Everyone", "Exchange", "Reads"]
