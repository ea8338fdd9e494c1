"""Near-far attention over a sequence that several processes hold, in plain torch.

Blocks of s positions count from the origin of a line (`lln.parallel.far_moments`); with w neighbours, the stretch from a to b
has rows of the blocks from t_0 to t_1. It is given

    the keys and values of the blocks from t_0 - w on and, unless causal, up to t_1 + w, and the first tokens of the line
    the moments of the far keys before block t_0 - w and, unless causal, from block t_1 + w on

in one exchange of rows with those who have them and one of moments with all.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.ops.backends import AUTO, PLAIN
from lln.ops.lln.chunked.tiles import laid_out, wide
from lln.ops.near_far import Operands, Results, near_far
from lln.ops.near_far.layout import FirstTokens, Layout
from lln.ops.near_far.moments import Moments
from lln.ops.near_far.plain import moments_of, run
from lln.parallel.agreement import agree
from lln.parallel.attention import needs_gradient
from lln.parallel.edges import Cuts, Rows, Wanted, fetch
from lln.parallel.far_moments import Places, far_moments, flat, unflat
from lln.parallel.packed import Crossing, layout_of
from lln.parallel.packed import Layout as PackedLayout
from lln.parallel.processes import Processes


def near_far_over(processes: Processes, x: Operands, backend: str) -> Results:
    """The results of this process's stretch."""
    if backend not in (AUTO, PLAIN):
        raise NotImplementedError(
            "over several processes near-far attention is computed by plain torch: "
            f"backend must be {AUTO!r} or {PLAIN!r}, got {backend!r}"
        )
    sequences = 0 if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
    agree(
        processes, f"near-far attention with {x.neighbours} neighbours and {x.first_tokens} first tokens", x.q, x.k, x.v,
        causal=x.is_causal, sequences=sequences, block_size=x.block_size, needs_gradient=needs_gradient(x),
    )  # fmt: skip
    out = _padded(processes, x) if x.cu_seqlens is None else _packed(processes, x, layout_of(x.cu_seqlens))
    return Results(laid_out(out, x.q))


class Line(NamedTuple):
    """Positions origin .. end - 1 of some samples."""

    samples: slice | Tensor  # of q, k, v and weights
    parameters: slice | Tensor  # of alpha, beta and bias
    origin: int
    end: int


class Part(NamedTuple):
    """What the stretch from `start` to `stop` has of a line, not nothing; blocks are numbered from the line's origin on."""

    start: int
    stop: int
    blocks: tuple[int, int]  # t_0, t_1
    window: tuple[int, int]  # of which keys are needed
    before: tuple[int, int]  # whose moments it sends for those after it
    after: tuple[int, int]  # and for those before it

    @staticmethod
    def of(line: Line, first: int, last: int, x: Operands) -> "Part | None":
        start, stop = (min(max(cut, line.origin), line.end) for cut in (first, last))
        if start == stop:
            return None
        size, reach = x.block_size, x.neighbours
        total = -(-(line.end - line.origin) // size)

        def past(cut: int) -> int:
            """How many blocks are far, and before, for who starts at the cut."""
            return max(0, (cut - line.origin) // size - reach)

        def future(cut: int) -> int:
            """The first block that is far, and after, for who ends at the cut."""
            return 0 if cut == line.origin else min(total, -(-(cut - line.origin) // size) + reach)

        own = ((start - line.origin) // size, -(-(stop - line.origin) // size))
        window = (past(start), own[1] if x.is_causal else future(stop))
        return Part(start, stop, own, window, (past(start), past(stop)), (future(start), future(stop)))

    def of_window(self, blocks: tuple[int, int]) -> tuple[int, int]:
        """The same blocks, counted from the first one of the window."""
        return blocks[0] - self.window[0], blocks[1] - self.window[0]

    def positions(self, line: Line, x: Operands) -> list[tuple[int, int]]:
        """Of the keys that it needs."""
        first, last = (min(line.origin + block * x.block_size, line.end) for block in self.window)
        return [(line.origin, min(line.origin + x.first_tokens, line.end)), (first, self.stop if x.is_causal else last)]


def _padded(processes: Processes, x: Operands) -> Tensor:
    found = Cuts.of(processes, x.k, x.key_mask)
    origins = sorted(set(found.origins))
    lines = {}
    for origin in origins:
        here = [i for i, o in enumerate(found.origins) if o == origin]
        samples = slice(None) if len(origins) == 1 else torch.tensor(here, device=x.k.device)
        lines[origin] = Line(samples, samples, origin, found.cuts[-1])
    ends = torch.tensor([0, *(found.origins.count(o) for o in origins)]).cumsum(0).tolist()
    everywhere = {origin: slice(a, b) for origin, (a, b) in zip(origins, pairwise(ends), strict=True)}
    places = [
        {o: at for o, at in everywhere.items() if Part.of(lines[o], first, last, x)}
        for first, last in pairwise(found.cuts)
    ]
    outs, tie = _over_lines(processes, x, found.cuts, lines, places, x.q.shape[0])
    first = found.cuts[processes.rank]
    rows = {o: F.pad(t, (0, 0, max(0, o - first), 0)) for o, t in outs.items()}  # zeros before the origin
    nothing = x.q.new_zeros(x.q.shape[0], x.q.shape[1], x.q.shape[2], x.v.shape[3], dtype=tie.dtype) + tie
    if len(origins) == 1:
        return next(iter(rows.values()), nothing) + tie
    for origin, t in rows.items():
        nothing = nothing.index_copy(0, lines[origin].samples, t)  # type: ignore[arg-type]
    return nothing


def _packed(processes: Processes, x: Operands, layout: PackedLayout) -> Tensor:
    """Sequences that lie across a cut are lines, the others are computed here by whichever backend."""
    edges = layout.edges

    def across(rank: int) -> list[int]:
        first, last = layout.cuts[rank], layout.cuts[rank + 1]
        return [s for s in layout.ends(rank) if edges[s] < first or edges[s + 1] > last]

    crossing = [across(rank) for rank in range(processes.size)]
    lines = {s: Line(slice(None), slice(s, s + 1), edges[s], edges[s + 1]) for found in crossing for s in found}
    places = [{s: slice(i, i + 1) for i, s in enumerate(found)} for found in crossing]
    outs, tie = _over_lines(processes, x, layout.cuts, lines, places, 2)
    mine, of_line = Crossing.of(layout, processes.rank), places[processes.rank]
    numbers, at = range(mine.sequences.start, mine.sequences.stop), mine.edges.tolist()
    if not numbers:
        return x.q.new_zeros(*x.q.shape[:3], x.v.shape[3], dtype=tie.dtype) + tie
    first = int(numbers[0] in of_line)
    last = len(numbers) - int(numbers[-1] in of_line)
    pieces = [outs[numbers[0]] if first else x.q.new_zeros(*x.q.shape[:2], 0, x.v.shape[3], dtype=tie.dtype)]
    if last > first and at[last] > at[first]:  # sequences without a token have no row
        rows, own = slice(at[first], at[last]), slice(numbers[first], numbers[first] + last - first)
        inside = _of(x, Line(slice(None), own, 0, 0))._replace(
            q=x.q[:, :, rows], k=x.k[:, :, rows], v=x.v[:, :, rows],
            cu_seqlens=(mine.edges[first : last + 1] - at[first]).to(x.q.device),
        )  # fmt: skip
        pieces.append(near_far(inside).out.to(tie.dtype))
    if last < len(numbers) and len(numbers) > 1:
        pieces.append(outs[numbers[-1]])
    return torch.cat(pieces, dim=2) + tie


def _over_lines(
    processes: Processes, x: Operands, cuts: tuple[int, ...], lines: dict[int, Line], places: Places, most: int
) -> tuple[dict[int, Tensor], Tensor]:
    """The output of the own rows of every line that this process has a part of, and a zero that hangs on to the exchanges.

    places: of each process, which of the `most` rows of moments that it sends are of which line.
    """
    rank, sizes = processes.rank, (x.k.shape[3], x.v.shape[3])
    parts = [
        {name: part for name, line in lines.items() if name in places[r] and (part := Part.of(line, *own, x))}
        for r, own in enumerate(pairwise(cuts))
    ]
    held = _Held.of(processes, x, cuts, lines, parts)
    layouts = {name: held.layout(lines[name], part, x) for name, part in parts[rank].items()}
    k, v = (t[:1].expand(most, -1, -1, -1) for t in (x.k, x.v))
    sent = []
    for kind in ("before",) if x.is_causal else ("before", "after"):
        found = flat(Moments.of_nothing(k, v, x.beta.dtype))
        for name, part in parts[rank].items():
            own, at = moments_of(layouts[name], part.of_window(getattr(part, kind))), places[rank][name]
            found = torch.cat([found[: at.start], flat(own), found[at.stop :]])
        sent.append(found)
    # Gradients go the same way on every process, whatever it has.
    own_moments = torch.stack(sent) + _nothing(x.beta, x.k, x.v)
    read = far_moments(processes, own_moments, places, sizes, x.beta.dtype)
    outs = {}
    for name, part in parts[rank].items():
        far = [unflat(kind[places[rank][name]], *sizes, x.beta.dtype) for kind in read]
        end = None if x.is_causal else far[1]
        out, _ = run(layouts[name], far[0], end=end, blocks=part.of_window(part.blocks))
        skipped = part.start - lines[name].origin - part.blocks[0] * x.block_size
        outs[name] = out.narrow(2, skipped, part.stop - part.start)
    return outs, _nothing(read, held.rows.k, held.rows.v, x.q).to(x.beta.dtype)


class _Held(NamedTuple):
    """The own rows and those that were fetched, in the order of their positions."""

    rows: Rows
    spans: Wanted  # the positions of the rows
    start: int  # where the own ones begin

    @staticmethod
    def of(
        processes: Processes, x: Operands, cuts: tuple[int, ...], lines: dict[int, Line], parts: list[dict[int, Part]]
    ) -> "_Held":
        wanted = [
            _outside([span for name, part in found.items() for span in part.positions(lines[name], x)], *own)
            for found, own in zip(parts, pairwise(cuts), strict=True)
        ]
        counts = torch.ones(x.k.shape[0], x.k.shape[2], dtype=torch.bool, device=x.k.device)
        own = Rows(x.k, x.v, counts if x.key_mask is None else x.key_mask)
        first, last = cuts[processes.rank], cuts[processes.rank + 1]
        if not any(wanted):
            return _Held(own, [(first, last)], first)
        came, mine = fetch(processes, own, cuts, wanted), wanted[processes.rank]
        before = sum(b - a for a, b in mine if b <= first)
        k, v = (
            torch.cat([t[:, :, :before], o, t[:, :, before:]], dim=2) for t, o in zip(came[:2], own[:2], strict=True)
        )
        counts = torch.cat([came.counts[:, :before], own.counts, came.counts[:, before:]], dim=1)
        return _Held(Rows(k, v, counts), sorted([*mine, (first, last)]), first)

    def between(self, first: int, last: int, samples: slice | Tensor) -> Rows:
        """The rows at these positions, all of which are held."""
        at = sum(min(b, first) - a for a, b in self.spans if a < first)
        k, v, counts = self.rows
        rows = slice(at, at + last - first)
        return Rows(k[samples][:, :, rows], v[samples][:, :, rows], counts[samples][:, rows])

    def layout(self, line: Line, part: Part, x: Operands) -> Layout:
        """Of the line, with the blocks of the part's window."""
        of_first, of_window = part.positions(line, x)
        k, v, counts = self.between(*of_window, line.samples)
        own = x.q[line.samples][:, :, part.start - self.start : part.stop - self.start]
        q = F.pad(own, (0, 0, part.start - of_window[0], of_window[1] - part.stop))
        first = FirstTokens(*self.between(*of_first, line.samples)) if x.first_tokens else None
        number = torch.arange(*part.window, device=k.device)[None]
        inside = _of(x, line)._replace(q=q, k=k, v=v, key_mask=None, cu_seqlens=None)
        return Layout(inside, counts, number, None, first, None)


def _of(x: Operands, line: Line) -> Operands:
    """With the line's own parameters."""
    bias = None if x.bias is None else x.bias[line.parameters]
    return x._replace(
        alpha=x.alpha[line.parameters], beta=x.beta[line.parameters], bias=bias, weights=x.weights[line.samples]
    )


def _outside(spans: Wanted, first: int, last: int) -> Wanted:
    """The parts of the spans that are not between first and last, overlapping ones joined, in order."""
    cut = [part for a, b in spans for part in ((a, min(b, first)), (max(a, last), b)) if part[0] < part[1]]
    joined: Wanted = []
    for a, b in sorted(cut):
        if joined and a <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(b, joined[-1][1]))
        else:
            joined.append((a, b))
    return joined


def _nothing(*tensors: Tensor) -> Tensor:
    """0 in the dtype of sums, hanging on to the tensors, whatever they hold."""
    never = torch.zeros((), dtype=torch.bool, device=tensors[0].device)
    return torch.stack([wide(torch.where(never, t.sum(), 0.0)) for t in tensors]).sum()
