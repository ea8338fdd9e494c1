"""LLN attention in plain torch on any device: linear time, one tile's features at a time, recomputed for backward."""

from itertools import pairwise

import torch
from torch import Tensor

from lln.backends.chunked import bidirectional, causal
from lln.backends.operator import define, empty_output

Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


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
    if cu_seqlens is not None:
        return _packed_forward(q, k, v, alpha, beta, bias, cu_seqlens, is_causal)
    if not is_causal:
        return bidirectional.forward(q, k, v, alpha, beta, bias, key_mask)
    start = _start(start_maximum, start_summed, start_normaliser)
    return causal.forward(_sequence(q, k, v, alpha, beta, bias, key_mask, start), start)


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
) -> Gradients:
    if cu_seqlens is not None:
        state = (maximum, summed, normaliser)
        return _packed_backward(grad, out, q, k, v, alpha, beta, bias, cu_seqlens, state, is_causal)
    if not is_causal:
        return bidirectional.backward(grad, out, q, k, v, alpha, beta, bias, key_mask, maximum, summed, normaliser)
    start = _start(start_maximum, start_summed, start_normaliser)
    return causal.backward(grad, out, _sequence(q, k, v, alpha, beta, bias, key_mask, start), start)


def _start(maximum: Tensor | None, summed: Tensor | None, normaliser: Tensor | None) -> causal.Start:
    if maximum is None or summed is None or normaliser is None:
        return None
    return maximum, summed, normaliser


def _sequence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    beta: Tensor,
    bias: Tensor | None,
    key_mask: Tensor | None,
    start: causal.Start,
) -> causal.Sequence:
    """A single step from a state, as in decoding, is not worth a whole tile."""
    tile_rows = 1 if start is not None and q.shape[2] == 1 else causal.TILE
    return causal.Sequence(q, k, v, alpha, beta, bias, key_mask, tile_rows)


def _bounds(cu_seqlens: Tensor) -> list[tuple[int, slice]]:
    """The packed sequences that hold a token, with their positions."""
    edges = cu_seqlens.tolist()
    return [(i, slice(start, stop)) for i, (start, stop) in enumerate(pairwise(edges)) if stop > start]


def _packed_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    beta: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out = empty_output(q, v.shape[-1])
    maximum = torch.full_like(beta, -torch.inf)
    summed = beta.new_zeros(*beta.shape, v.shape[-1])
    normaliser = torch.zeros_like(beta)
    for i, at in _bounds(cu_seqlens):
        one = slice(i, i + 1)
        out[:, :, at], maximum[one], summed[one], normaliser[one] = forward(
            q[:, :, at], k[:, :, at], v[:, :, at], alpha[one], beta[one], None if bias is None else bias[one],
            None, None, None, None, None, is_causal,
        )  # fmt: skip
    return out, maximum, summed, normaliser


def _packed_backward(
    grad: Tensor,
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    beta: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    state: tuple[Tensor, Tensor, Tensor],
    is_causal: bool,
) -> Gradients:
    by_position = [empty_output(x, x.shape[-1]) for x in (q, k, v)]
    by_sequence = [torch.zeros_like(x) for x in (alpha, beta, alpha)]
    for i, at in _bounds(cu_seqlens):
        one = slice(i, i + 1)
        maximum, summed, normaliser = (x[one] for x in state)
        gradients = backward(
            grad[:, :, at], out[:, :, at], q[:, :, at], k[:, :, at], v[:, :, at],
            alpha[one], beta[one], None if bias is None else bias[one],
            None, None, None, None, None, maximum, summed, normaliser, is_causal, True,
        )  # fmt: skip
        for whole, part in zip(by_position, gradients[:3], strict=True):
            whole[:, :, at] = part
        for whole, part in zip(by_sequence, gradients[3:], strict=True):
            whole[one] = part
    dq, dk, dv = by_position
    dalpha, dbeta, dbias = by_sequence
    return dq, dk, dv, dalpha, dbeta, dbias


OPERATOR = define("chunked", forward, backward)
