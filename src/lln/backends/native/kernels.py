"""The operator's forward and backward on the compiled kernel: checks and allocation here, arithmetic in C++."""

import torch
from torch import Tensor

from lln.backends.native.arguments import DTYPES, NO_TENSOR, address, call, dense, empty_result, mask, strided
from lln.backends.native.library import PROBLEM_WORDS, UnusableError, library

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


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    beta: Tensor,
    bias: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    start_maximum: Tensor | None,
    start_summed: Tensor | None,
    start_normaliser: Tensor | None,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output and state after the last key; see `lln.backends.operator`."""
    sequences, key_heads, dim = beta.shape
    value_dim = v.shape[-1]
    out = empty_result(q, value_dim)
    maximum = beta.new_empty(sequences, key_heads, dim)
    summed = beta.new_empty(sequences, key_heads, dim, value_dim)
    normaliser = beta.new_empty(sequences, key_heads, dim)
    held, words = _arguments(
        q, k, v, alpha, beta, bias, key_mask, cu_seqlens, start_maximum, start_summed, start_normaliser,
        maximum, summed, normaliser, out, is_causal, False,
    )  # fmt: skip
    call("forward", words + _NO_GRADIENTS, PROBLEM_WORDS)
    del held
    return out, maximum, summed, normaliser


def backward(
    grad: Tensor,
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    beta: Tensor,
    bias: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    start_maximum: Tensor | None,
    start_summed: Tensor | None,
    start_normaliser: Tensor | None,
    maximum: Tensor,
    summed: Tensor,
    normaliser: Tensor,
    is_causal: bool,
    parameter_grads: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, alpha, beta and bias; the last three mean nothing unless `parameter_grads`."""
    dq, dk, dv = (empty_result(x, x.shape[-1]) for x in (q, k, v))
    dalpha, dbeta, dbias = torch.empty_like(alpha), torch.empty_like(beta), torch.empty_like(alpha)
    parameters = [torch.empty(x.shape, dtype=torch.float32) for x in (alpha, beta, alpha)] if parameter_grads else []
    held, words = _arguments(
        q, k, v, alpha, beta, bias, key_mask, cu_seqlens, start_maximum, start_summed, start_normaliser,
        maximum.contiguous(), summed.contiguous(), normaliser.contiguous(), out, is_causal, parameter_grads,
    )  # fmt: skip
    gradients = (*strided(grad), *strided(dq), *strided(dk), *strided(dv))
    call("backward", words + gradients + (tuple(x.data_ptr() for x in parameters) or (0, 0, 0)), PROBLEM_WORDS)
    for target, computed in zip((dalpha, dbeta, dbias), parameters, strict=False):
        target.copy_(computed)
    del held
    return dq, dk, dv, dalpha, dbeta, dbias


def _arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    beta: Tensor,
    bias: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    start_maximum: Tensor | None,
    start_summed: Tensor | None,
    start_normaliser: Tensor | None,
    maximum: Tensor,
    summed: Tensor,
    normaliser: Tensor,
    out: Tensor,
    is_causal: bool,
    parameter_grads: bool,
) -> tuple[list[Tensor | None], tuple[int, ...]]:
    """The fields of `Problem` up to `out`, and the tensors that must outlive the call."""
    _check(q, k, v, is_causal)
    small = [dense(x) for x in (cu_seqlens, alpha, beta, bias, start_maximum, start_summed, start_normaliser)]
    at = [address(x) for x in small]
    words = (
        torch.get_num_threads(), DTYPES[q.dtype], int(is_causal), int(parameter_grads),
        beta.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3],
        at[0], *mask(key_mask), *at[1:], maximum.data_ptr(), summed.data_ptr(), normaliser.data_ptr(),
        *strided(q), *strided(k), *strided(v), *strided(out),
    )  # fmt: skip
    return [*small, maximum, summed, normaliser], words


def _check(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> None:
    reason = supports(q, k, v)
    if reason is not None:
        raise ValueError(reason)
    if is_causal and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"causal attention needs as many queries as keys; given {q.shape[2]} queries and {k.shape[2]} keys"
        )
