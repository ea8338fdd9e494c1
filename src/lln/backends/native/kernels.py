"""The operator's forward and backward on the compiled kernel: checks and allocation here, arithmetic in C++."""

import torch
from torch import Tensor

from lln.backends.native.arguments import DTYPES, NO_TENSOR, address, call, dense, empty_result, mask, strided
from lln.backends.native.library import PROBLEM_WORDS, UnusableError, library
from lln.backends.operator import Gradients, Operands, State

_NO_GRADIENTS = NO_TENSOR * 4 + (0, 0, 0)


def available() -> str | None:
    """None if the backend can run here, else why not."""
    try:
        library().isa()
    except UnusableError as error:
        return str(error)
    return None


def supports(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """None if the backend takes these tensors, else why not."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.device.type != "cpu":
            return f"the native backend runs on the CPU; {name} is on {tensor.device}"
        if tensor.dtype not in DTYPES:
            return f"the native backend takes float32, float16 and bfloat16; {name} is {tensor.dtype}"
        if tensor.dtype != q.dtype:
            return f"the native backend needs one dtype; q is {q.dtype}, {name} is {tensor.dtype}"
    return None


def forward(x: Operands) -> tuple[Tensor, State]:
    """Output and state after the last key; see `lln.backends.operator`."""
    out = empty_result(x.q, x.v.shape[-1])
    state = State.uninitialised(x.beta, x.v.shape[-1])
    held, words = _arguments(x, state, out, False)
    call("forward", words + _NO_GRADIENTS, PROBLEM_WORDS)
    del held
    return out, state


def backward(grad: Tensor, out: Tensor, x: Operands, state: State, parameter_grads: bool) -> Gradients:
    """Gradients of q, k, v, alpha, beta and bias; the last three mean nothing unless `parameter_grads`."""
    dq, dk, dv = (empty_result(t, t.shape[-1]) for t in (x.q, x.k, x.v))
    of = (x.alpha, x.beta, x.alpha)
    dalpha, dbeta, dbias = (torch.empty_like(t) for t in of)
    parameters = [torch.empty(t.shape, dtype=torch.float32) for t in of] if parameter_grads else []
    held, words = _arguments(x, State(*(t.contiguous() for t in state)), out, parameter_grads)
    gradients = (*strided(grad), *strided(dq), *strided(dk), *strided(dv))
    call("backward", words + gradients + (tuple(t.data_ptr() for t in parameters) or (0, 0, 0)), PROBLEM_WORDS)
    for target, computed in zip((dalpha, dbeta, dbias), parameters, strict=False):
        target.copy_(computed)
    del held
    return dq, dk, dv, dalpha, dbeta, dbias


def _arguments(
    x: Operands, state: State, out: Tensor, parameter_grads: bool
) -> tuple[list[Tensor | None], tuple[int, ...]]:
    """The fields of `Problem` up to `out`, and the tensors that must outlive the call."""
    q, k, v = x.q, x.k, x.v
    _check(q, k, v, x.is_causal)
    small = [dense(t) for t in (x.cu_seqlens, x.alpha, x.beta, x.bias, *(x.start or (None, None, None)))]
    at = [address(t) for t in small]
    words = (
        torch.get_num_threads(), DTYPES[q.dtype], int(x.is_causal), int(parameter_grads),
        x.beta.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3],
        at[0], *mask(x.key_mask), *at[1:], *(t.data_ptr() for t in state),
        *strided(q), *strided(k), *strided(v), *strided(out),
    )  # fmt: skip
    return [*small, *state], words


def _check(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> None:
    reason = supports(q, k, v)
    if reason is not None:
        raise ValueError(reason)
    if is_causal and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"causal attention needs as many queries as keys; given {q.shape[2]} queries and {k.shape[2]} keys"
        )
