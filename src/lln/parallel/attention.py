"""LLN attention (eq. 8) over a sequence that several processes hold, exactly, with one exchange of states.

    bidirectional   the state of the own keys; gather and merge all states; the own queries read the sum
    causal          the state of the own keys; gather, merge those of the stretches before; continue from there

Both use the operation `lln::attention` on this process, with any backend, its starting and final states and their gradients;
`lln.parallel.states` does the exchange. A stretch without a token takes part like any other.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.lln import Operands, Results, State, attention
from lln.parallel.agreement import Agreement
from lln.parallel.packed import Crossing, Layout, layout_of
from lln.parallel.processes import Processes
from lln.parallel.states import Everyone, Exchange


def attention_over(processes: Processes, x: Operands, backend: str) -> Results:
    """The results of this process's stretch; the final state is that of the whole sequence, on every process."""
    return Begun(processes, x, backend).finish()


class Begun:
    """Attention whose exchange is under way: local work may be done before `finish`."""

    def __init__(self, processes: Processes, x: Operands, backend: str, block_size: int = 0) -> None:
        layout = None if x.cu_seqlens is None else layout_of(x.cu_seqlens)
        agreement = Agreement(
            processes, "LLN+Diag" if block_size else "LLN attention", x.q, x.k, x.v, causal=x.is_causal,
            sequences=x.beta.shape[0], block_size=block_size, start=x.start is not None, needs_gradient=needs_gradient(x),
        )  # fmt: skip
        if layout is None:
            self._one: _Whole | _Packed = _Whole(processes, x, backend, agreement)
        else:
            self._one = _Packed(processes, x, backend, agreement, layout)

    def finish(self) -> Results:
        return self._one.finish()


class _Whole:
    """Samples of a batch, each cut at the same places."""

    def __init__(self, processes: Processes, x: Operands, backend: str, agreement: Agreement) -> None:
        self.processes, self.x, self.backend = processes, x, backend
        own = _side_by_side([_state_of_keys(x, backend)])
        agreement.settle()
        self.exchange = Exchange(processes, own)

    def finish(self) -> Results:
        x, everyone = self.x, Everyone.of(self.processes.size)
        total = _row(self.exchange.merged(everyone.all, x.start), 0)
        if not x.is_causal:
            out = _read(x, total, self.backend)
        else:
            out = _go_on(x, _row(self.exchange.merged(everyone.before, x.start), 0), self.backend)
        return Results(out, *total.with_sums_in(x.sums_dtype))


class _Packed:
    """Packed sequences, of which at most two lie across this stretch's ends: only their states travel."""

    def __init__(self, processes: Processes, x: Operands, backend: str, agreement: Agreement, layout: Layout) -> None:
        self.x, self.backend, self.crossing = x, backend, Crossing.of(layout, processes.rank)
        self.exchange: Exchange | None = None
        agreement.settle()
        if layout.is_cut_inside_a_sequence:
            # a stretch without a token sends a state, too, through which gradients flow as they do on the others
            ends = [_state_of_sequence(x, *end, backend) for end in self.crossing.ends or [(0, slice(0, 0))]]
            nothing = State.without_keys(x.beta[:1], x.v.shape[-1])
            self.exchange = Exchange(processes, _side_by_side([*ends, nothing, nothing][:2]))
        self.reads = layout.reads(x.is_causal)

    def finish(self) -> Results:
        x, mine = self.x, self.crossing.sequences
        count = mine.stop - mine.start
        if self.exchange is None and count:
            return attention(_of_sequences(x, mine, self.crossing.edges), self.backend)
        rows = None if self.exchange is None else self.exchange.merged(self.reads)
        if not count:  # no token here
            return Results(*_nothing(x, rows))
        assert rows is not None
        between = State.without_keys(x.beta[mine.start + 1 : mine.stop - 1], x.v.shape[-1], rows.summed.dtype)
        pieces = [_row(rows, 0), between, _row(rows, 1)] if count > 1 else [_row(rows, 0)]
        start = State(*(torch.cat(parts) for parts in zip(*pieces, strict=True)))
        return attention(_of_sequences(x, mine, self.crossing.edges).starting_from(start), self.backend)


def _state_of_keys(x: Operands, backend: str) -> State:
    """c, S and z of the own keys that count, in the compute dtype: what one query alone would read."""
    keyless = x._replace(start_maximum=None, start_summed=None, start_normaliser=None, is_causal=False)
    return attention(_with_a_token(keyless._replace(q=_one_row(x.q))), backend).state


def _state_of_sequence(x: Operands, row: int, span: slice, backend: str) -> State:
    one = slice(row, row + 1)
    bias = None if x.bias is None else x.bias[one]
    own = Operands(x.q, x.k[:, :, span], x.v[:, :, span], x.alpha[one], x.beta[one], bias)
    return _state_of_keys(own, backend)


def _read(x: Operands, state: State, backend: str) -> Tensor:
    """What the queries find in the state."""
    batch, heads, _, dim = x.k.shape
    no_key = torch.zeros(batch, 1, dtype=torch.bool, device=x.k.device)
    k, v = x.k.new_zeros(batch, heads, 1, dim), x.v.new_zeros(batch, heads, 1, x.v.shape[3])
    reading = x._replace(k=k, v=v, key_mask=no_key).starting_from(state)
    return _without_the_token(attention(_with_a_token(reading), backend).out, x.q)


def _go_on(x: Operands, state: State, backend: str) -> Tensor:
    return _without_the_token(attention(_with_a_token(x).starting_from(state), backend).out, x.q)


def _with_a_token(x: Operands) -> Operands:
    """Kernels get one query and one key at least; a key that was not there does not count."""
    if x.q.shape[2] == 0:
        x = x._replace(q=torch.cat([x.q, _one_row(x.q)], dim=2))
    if x.k.shape[2] == 0:
        mask = torch.zeros(x.k.shape[0], 1, dtype=torch.bool, device=x.k.device)
        k, v = (torch.cat([t, _one_row(t)], dim=2) for t in (x.k, x.v))
        x = x._replace(k=k, v=v, key_mask=mask)
    return x


def _without_the_token(out: Tensor, q: Tensor) -> Tensor:
    return out if out.shape[2] == q.shape[2] else out[:, :, : q.shape[2]]


def _one_row(x: Tensor) -> Tensor:
    return x.new_zeros(x.shape[0], x.shape[1], 1, x.shape[3])


def _of_sequences(x: Operands, mine: slice, edges: Tensor) -> Operands:
    bias = None if x.bias is None else x.bias[mine]
    return x._replace(alpha=x.alpha[mine], beta=x.beta[mine], bias=bias, cu_seqlens=edges.to(x.q.device))


def _nothing(x: Operands, rows: State | None) -> tuple[Tensor, ...]:
    """The output of no query, hanging on to the exchange, so that this process takes part in its backward pass, too."""
    reads = x.q.sum() if rows is None else rows.summed.sum().to(x.q.dtype)
    out = x.q.new_zeros(*x.q.shape[:3], x.v.shape[3]) + reads
    return (out, *State.without_keys(x.beta[:1], x.v.shape[-1]))


def _side_by_side(states: list[State]) -> State:
    return State(*(torch.stack(parts) for parts in zip(*states, strict=True)))


def _row(rows: State, at: int) -> State:
    return State(*(t[at] for t in rows))


def needs_gradient(x: NamedTuple) -> bool:
    """Whether a backward pass may come."""
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in x)
