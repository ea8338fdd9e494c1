"""LLN attention by the kernels: workspaces, grids, and the order of launches (`lln.ops.lln.triton` lists them)."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lln.ops.gpu import bidirectional, causal, causal_gradients, decoding, states, sums
from lln.ops.gpu.plan import Plan
from lln.ops.gpu.tensors import State, Sums, Weight, mask, rows, scales, weights
from lln.ops.gpu.tiles import LARGEST_VALUES, Shape, addresses_anew, power_of_two, tile
from lln.ops.lln.op import Operands, Results
from lln.ops.lln.op import State as FinalState
from lln.ops.operation import empty_like_rows, empty_rows


class Call(NamedTuple):
    """A record of operands as the kernels see it."""

    x: Operands
    shape: Shape
    groups: int
    keys: Plan
    queries: Plan

    @staticmethod
    def of(x: Operands) -> "Call":
        shape = Shape(x.k.shape[-1], x.v.shape[-1])
        keys = Plan.of(x.k, x.cu_seqlens, shape.stretch)
        queries = keys if x.q.shape[2] == x.k.shape[2] else Plan.of(x.q, None, shape.stretch)
        return Call(x, shape, x.q.shape[1] // x.k.shape[1], keys, queries)

    def options(self, kernel: str) -> dict[str, Any]:
        """Sizes of a kernel that goes over rows."""
        chosen = tile(kernel, self.shape, self.x.q.dtype, self.x.q.device)
        if not kernel.startswith("causal"):
            return {**self.shape.whole, "ROWS": chosen.rows, **chosen.options}
        levels = chosen.rows.bit_length() - 1
        return {
            **self.shape.causal(kernel == "causal_gradients", self.x.q.dtype, self.x.q.device),
            "ROWS": chosen.rows,
            "LEVELS": levels,
            **chosen.options,
        }

    @property
    def start(self) -> State | None:
        return None if self.x.start is None else State(*(t.contiguous() for t in self.x.start))

    @property
    def merging_grid(self) -> tuple[int, int, int]:
        return self.keys.sequences, self.x.k.shape[1], self.shape.merged_slices

    def empty_states(self, plan: Plan, heads: int) -> State:
        return State(*_empty(self.x.beta, (plan.total, heads, self.shape.D), self.shape.E))

    def empty_sums(self, count: int, heads: int) -> Sums:
        return Sums(*_empty(self.x.beta, (count, heads, self.shape.D), self.shape.E)[1:])

    def waiting_states(self, options: dict[str, Any]) -> State | None:
        """Where the state of each causal program waits between tiles, if it is too large for registers."""
        return None if options["SLICES"] == 1 else self.empty_states(self.keys, self.x.q.shape[1])

    def empty_start(self) -> Sums | None:
        """For the gradient of the starting state, if there is one."""
        start = self.x.start
        if start is None:
            return None
        return Sums(*(t.new_empty(t.shape) for t in (start.summed, start.normaliser)))

    def empty_scales(self, plan: Plan, heads: int) -> Tensor:
        return self.x.beta.new_empty(plan.total, heads, self.shape.D)


def forward(x: Operands) -> Results:
    with on(x.q.device):
        call = Call.of(x)
        if is_step(x):
            return _step(call)
        out = empty_rows(x.q, call.shape.E)
        if x.is_causal:
            return Results(out, *_causal_outputs(call, out))
        final = final_state(call)
        bidirectional.outputs[(call.queries.total, x.q.shape[1])](
            rows(x.q), scales(x.alpha), scales(x.bias), final, rows(out), call.queries.stretches, call.groups,
            **call.options("outputs"), SLICES=call.shape.slices,
        )  # fmt: skip
        return Results(out, *final)


def final_state(call: Call) -> State:
    """The state of each sequence."""
    x = call.x
    parts = _key_states(call)
    final = State(*FinalState.uninitialised(x.beta, call.shape.E, x.sums_dtype))
    states.merge_states[call.merging_grid](
        parts, call.start, final, call.keys.stretches, **call.shape.merging, num_warps=4
    )
    return final


def _causal_outputs(call: Call, out: Tensor) -> State:
    x, parts = call.x, _key_states(call)
    final = State(*FinalState.uninitialised(x.beta, call.shape.E, x.sums_dtype))
    _prefixes(call, parts, final)
    options = call.options("causal_outputs")
    causal.causal_outputs[(call.keys.total, x.q.shape[1])](
        *_operands(call), parts, call.waiting_states(options), rows(out), call.keys.stretches, call.groups, **options
    )
    return final


def is_step(x: Operands) -> bool:
    """Whether this is a step of decoding: one token, after others."""
    return x.start is not None and x.cu_seqlens is None and x.q.shape[2] == x.k.shape[2] == 1


def _step(call: Call) -> Results:
    """All of it in one launch."""
    x, shape, start = call.x, call.shape, call.start
    assert start is not None
    out = empty_rows(x.q, shape.E)
    final = State(*(t.new_empty(t.shape) for t in start))
    sizes = shape.stepping
    decoding.step[(x.k.shape[0], x.k.shape[1], -(-shape.E // sizes["VALUES"]))](
        *_operands(call), start, final, rows(out), call.groups, **sizes, num_warps=4
    )
    return Results(out, *final)


def _operands(call: Call) -> tuple[Any, ...]:
    x = call.x
    return (
        rows(x.q), rows(x.k), rows(x.v), scales(x.alpha), scales(x.beta), scales(x.bias), mask(x.key_mask),
    )  # fmt: skip


def _prefixes(call: Call, parts: State, final: State) -> None:
    """States of stretches become those before them."""
    states.prefix_states[call.merging_grid](
        parts, call.start, final, call.keys.stretches, **call.shape.merging, num_warps=4
    )


def _key_states(call: Call) -> State:
    """The state of each stretch of keys by itself."""
    x, heads = call.x, call.x.k.shape[1]
    parts = call.empty_states(call.keys, heads)
    states.key_states[(call.keys.total, heads, call.shape.slices)](
        rows(x.k), rows(x.v), scales(x.beta), mask(x.key_mask), parts, call.keys.stretches,
        **call.options("key_states"),
    )  # fmt: skip
    return parts


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    return weighted_backward(grads, results, x, wanted, None)


def weighted_backward(
    grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str], weight: Tensor | None
) -> dict[str, Tensor]:
    """`backward`, from w_i dout_i where a weight (B, Hq, N or 1) is given. Gradients of q, k, v and the start come unasked."""
    out = results.out
    grad = grads["out"]
    grad = out.new_zeros(()).expand_as(out) if grad is None else grad
    later = _of_final_state(grads, results)
    with on(x.q.device):
        found = (_causal_backward if x.is_causal else _bidirectional_backward)(
            Call.of(x), grad, results, later, weights(weight), bool(wanted & {"alpha", "beta", "bias"})
        )
        return found


def _bidirectional_backward(
    call: Call, grad: Tensor, results: Results, later: Sums | None, weight: Weight | None, of_scales: bool
) -> dict[str, Tensor]:
    x, shape = call.x, call.shape
    query_heads, key_heads = x.q.shape[1], x.k.shape[1]
    state = State(*(t.contiguous() for t in results.state))
    dq, dk, dv = (empty_like_rows(t) for t in (x.q, x.k, x.v))
    parts = call.empty_sums(call.queries.total, query_heads)
    dalpha, dbias = (call.empty_scales(call.queries, query_heads) for _ in range(2))
    bidirectional.query_gradients[(call.queries.total, query_heads, shape.slices)](
        rows(x.q), scales(x.alpha), scales(x.bias), state, rows(results.out), rows(grad), weight, rows(dq), parts,
        dalpha, dbias, call.queries.stretches, call.groups, **call.options("query_gradients"), SLICES=shape.slices,
    )  # fmt: skip
    dstate = call.empty_sums(call.keys.sequences, key_heads)
    dstart = call.empty_start()
    sums.sum_state_gradients[call.merging_grid](
        parts,
        later,
        state,
        call.start,
        dstate,
        dstart,
        call.queries.stretches,
        call.groups,
        **shape.merging,
        num_warps=4,
    )
    dbeta = call.empty_scales(call.keys, key_heads)
    of_keys = (
        rows(x.k), rows(x.v), scales(x.beta), mask(x.key_mask), state, dstate, rows(dk), rows(dv), dbeta,
        call.keys.stretches,
    )  # fmt: skip
    grid, options = (call.keys.total, key_heads), call.options("key_gradients")
    if shape.slices == 1:
        bidirectional.key_gradients[grid](*of_keys, **options, SLICES=1, OF_KEYS=True, OF_VALUES=True)
    else:
        bidirectional.key_gradients[(*grid, shape.slices)](*of_keys, **options, SLICES=1, OF_KEYS=True, OF_VALUES=False)
        bidirectional.key_gradients[grid](*of_keys, **options, SLICES=shape.slices, OF_KEYS=False, OF_VALUES=True)
    of_small = _summed_scales(call, dalpha, dbias, dbeta) if of_scales else {}
    return {"q": dq, "k": dk, "v": dv, **of_small, **_of_start(dstart)}


def _causal_backward(
    call: Call, grad: Tensor, results: Results, later: Sums | None, weight: Weight | None, of_scales: bool
) -> dict[str, Tensor]:
    """Gradients are sums over the columns of the values, so these are taken LARGEST_VALUES at a time."""
    x, columns = call.x, call.shape.E
    if columns <= LARGEST_VALUES:
        return _causal_gradients(call, grad, results, later, weight, of_scales, x.q.dtype)
    parts: list[dict[str, Tensor]] = []
    for first in range(0, columns, LARGEST_VALUES):
        e = slice(first, first + LARGEST_VALUES)
        start = None if x.start_summed is None else x.start_summed[..., e]
        some = Call.of(x._replace(v=x.v[..., e], start_summed=start))
        of_sums = results._replace(out=results.out[..., e], summed=results.summed[..., e])
        of_later = None
        if later is not None:
            normaliser = later.normaliser if first == 0 else torch.zeros_like(later.normaliser)
            of_later = Sums(later.summed[..., e].contiguous(), normaliser)
        parts.append(_causal_gradients(some, grad[..., e], of_sums, of_later, weight, of_scales, torch.float32))
    found = {}
    for name in parts[0]:
        some_of_it = [part[name] for part in parts]
        is_cut = name in ("v", "start_summed")
        found[name] = torch.cat(some_of_it, dim=-1) if is_cut else sum(some_of_it[1:], some_of_it[0])
    return found | {"q": found["q"].to(x.q.dtype), "k": found["k"].to(x.k.dtype)}


def _causal_gradients(
    call: Call,
    grad: Tensor,
    results: Results,
    later: Sums | None,
    weight: Weight | None,
    of_scales: bool,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """`dtype`: of dq and dk."""
    x, count = call.x, call.keys.total
    query_heads, key_heads = x.q.shape[1], x.k.shape[1]
    before, state = _key_states(call), State(*(t.contiguous() for t in results.state))
    # The final state is known already; the one written here is not used.
    _prefixes(call, before, State(*FinalState.uninitialised(x.beta, call.shape.E, x.beta.dtype)))
    options = call.options("causal_gradients")
    options["TILES"] = call.keys.stretches.rows // options["ROWS"]
    dq, dk = (torch.empty_like(empty_like_rows(t), dtype=dtype) for t in (x.q, x.k))
    dv = empty_like_rows(x.v)
    parts = call.empty_sums(count, query_heads)
    dalpha, dbias = (call.empty_scales(call.keys, query_heads) for _ in range(2))
    maxima = x.beta.new_empty(count * options["TILES"], key_heads, call.shape.D)
    rates = x.beta.new_empty(*x.q.shape[:3], 3)
    causal_gradients.causal_query_gradients[(count, query_heads)](
        *_operands(call), before, call.waiting_states(options), rows(results.out), rows(grad), weight, rows(dq), parts,
        dalpha, dbias, maxima, rates, call.keys.stretches, call.groups, **options,
    )  # fmt: skip
    after, dstart = call.empty_sums(count, key_heads), call.empty_start()
    sums.suffix_gradients[call.merging_grid](
        parts, later, before, state, after, dstart, call.keys.stretches, call.groups, **call.shape.merging, num_warps=4
    )
    dbeta = call.empty_scales(call.keys, key_heads)
    causal_gradients.causal_key_gradients[(count, key_heads)](
        *_operands(call), after, rows(grad), weight, maxima, rates, rows(dk), rows(dv), dbeta,
        call.keys.stretches, call.groups, **options, ANEW=addresses_anew(x.q.device),
    )  # fmt: skip
    of_small = _summed_scales(call, dalpha, dbias, dbeta) if of_scales else {}
    return {"q": dq, "k": dk, "v": dv, **of_small, **_of_start(dstart)}


def _of_start(dstart: Sums | None) -> dict[str, Tensor]:
    return {} if dstart is None else {"start_summed": dstart.summed, "start_normaliser": dstart.normaliser}


def _summed_scales(call: Call, alpha: Tensor, bias: Tensor, beta: Tensor) -> dict[str, Tensor]:
    sequences, query_heads, key_heads = call.keys.sequences, alpha.shape[1], beta.shape[1]
    dalpha, dbias, dbeta = (t.new_empty(sequences, *t.shape[1:]) for t in (alpha, bias, beta))
    sums.sum_scales[(sequences, query_heads + key_heads)](
        alpha, bias, beta, dalpha, dbias, dbeta, call.queries.stretches, call.keys.stretches, query_heads, key_heads,
        D=call.shape.D, COLUMNS=power_of_two(call.shape.D), num_warps=1 if call.shape.D <= 32 else 2,
    )  # fmt: skip
    return {"alpha": dalpha, "bias": dbias, "beta": dbeta}


def _of_final_state(grads: dict[str, Tensor | None], results: Results) -> Sums | None:
    """The gradient that came through the final state, if any did."""
    given = (grads["summed"], grads["normaliser"])
    if given == (None, None):
        return None
    like = (results.summed, results.normaliser)
    return Sums(*(torch.zeros_like(t) if g is None else g.contiguous() for g, t in zip(given, like, strict=True)))


def _empty(like: Tensor, shape: tuple[int, int, int], values: int) -> tuple[Tensor, Tensor, Tensor]:
    return like.new_empty(shape), like.new_empty(*shape, values), like.new_empty(shape)


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Kernels are launched on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
