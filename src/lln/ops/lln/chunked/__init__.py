"""LLN attention in plain torch on any device: linear time, a few tiles' features at a time, recomputed for backward.

No value is read back from the device, so that on a GPU nothing waits for the host.
"""

from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.lln.chunked import bidirectional, causal, packed
from lln.ops.lln.op import Operands, Results, State, attention


def forward(x: Operands) -> Results:
    if not x.is_causal:
        if x.cu_seqlens is not None:
            out, state = packed.forward(x)
        else:
            state = bidirectional.key_state(x)
            out = bidirectional.read_state(x, state)
    elif x.cu_seqlens is not None:
        laid = packed.Packed.of(x, causal.TILE)
        out, state = causal.forward(causal.Sequence(laid.x, laid.sequence))
        out = laid.back(out, x.q)
    else:
        out, state = causal.forward(causal.Sequence(x))
    return Results(out, *(t.contiguous() for t in state.with_sums_in(x.sums_dtype)))


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    """Gradients of everything, whatever is wanted: those of the small operands cost next to nothing."""
    grad, out, state = grads["out"], results.out, results.state
    grad = out.new_zeros(()).expand_as(out) if grad is None else grad
    final = (grads["summed"], grads["normaliser"])
    if not x.is_causal:
        if x.cu_seqlens is not None:
            return packed.backward(grad, out, x, state, final)
        gradients, part = bidirectional.read_state_backward(grad, out, x, state)
        sums = (t if own is None else t + own for t, own in zip(part[1:], final, strict=True))
        return gradients | bidirectional.key_state_backward(x, State(state.maximum, *sums))
    if x.cu_seqlens is None:
        return causal.backward(grad, out, causal.Sequence(x), state.maximum, final)
    laid = packed.Packed.of(x, causal.TILE)
    grad, out = (laid.slots.scatter(t) for t in (grad, out))
    found = causal.backward(grad, out, causal.Sequence(laid.x, laid.sequence), state.maximum, final)
    return found | {n: laid.back(found[n], getattr(x, n)) for n in ("q", "k", "v")}


CHUNKED = attention.backends.register(Backend("chunked", forward, backward, transparent=True))
