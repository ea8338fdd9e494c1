"""LLN attention in plain torch on any device: linear time, one tile's features at a time, recomputed for backward."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from lln.backends.chunked import bidirectional, causal
from lln.backends.operator import Gradients, Operands, State, define, empty_output


def forward(x: Operands) -> tuple[Tensor, State]:
    if x.cu_seqlens is not None:
        return _packed_forward(x, x.cu_seqlens)
    return causal.forward(x) if x.is_causal else bidirectional.forward(x)


def backward(grad: Tensor, out: Tensor, x: Operands, state: State, parameter_grads: bool) -> Gradients:
    """Gradients of alpha, beta and bias come whether `parameter_grads` asks for them or not."""
    if x.cu_seqlens is not None:
        return _packed_backward(grad, out, x, state, x.cu_seqlens)
    return causal.backward(grad, out, x) if x.is_causal else bidirectional.backward(grad, out, x, state)


def _packed_forward(x: Operands, cu_seqlens: Tensor) -> tuple[Tensor, State]:
    out = empty_output(x.q, x.v.shape[-1])
    state = State.without_keys(x.beta, x.v.shape[-1])
    for at, one, sequence in _sequences(x, cu_seqlens):
        out[:, :, at], final = forward(sequence)
        for whole, part in zip(state, final, strict=True):
            whole[one] = part
    return out, state


def _packed_backward(grad: Tensor, out: Tensor, x: Operands, state: State, cu_seqlens: Tensor) -> Gradients:
    by_position = [empty_output(t, t.shape[-1]) for t in (x.q, x.k, x.v)]
    by_sequence = [torch.zeros_like(t) for t in (x.alpha, x.beta, x.alpha)]
    for at, one, sequence in _sequences(x, cu_seqlens):
        final = State(*(t[one] for t in state))
        gradients = backward(grad[:, :, at], out[:, :, at], sequence, final, True)
        for whole, part in zip(by_position, gradients[:3], strict=True):
            whole[:, :, at] = part
        for whole, part in zip(by_sequence, gradients[3:], strict=True):
            whole[one] = part
    dq, dk, dv = by_position
    dalpha, dbeta, dbias = by_sequence
    return dq, dk, dv, dalpha, dbeta, dbias


def _sequences(x: Operands, cu_seqlens: Tensor) -> Iterator[tuple[slice, slice, Operands]]:
    """The packed sequences that hold a token: positions, number as a slice, and each as operands of its own."""
    for i, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        if stop > start:
            at, one = slice(start, stop), slice(i, i + 1)
            q, k, v = (t[:, :, at] for t in (x.q, x.k, x.v))
            bias = None if x.bias is None else x.bias[one]
            yield at, one, Operands(q, k, v, x.alpha[one], x.beta[one], bias, is_causal=x.is_causal)


OPERATOR = define("chunked", forward, backward)
