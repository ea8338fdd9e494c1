"""Near-far attention: softmax, exact, over what is near; LLN and the moments of the keys for what is far."""

from typing import Any, Literal, overload

import torch
from torch import Tensor

from lln.attention import (
    Scale,
    _broadcast,
    _check_blocks,
    _edges,
    _refuse_nan,
    _refuse_what_is_no_real_number,
    _Scales,
)
from lln.matching import match_moments
from lln.near_far.state import NearFarState
from lln.observers import UNWATCHED, observers, watched
from lln.ops.backends import AUTO
from lln.ops.checks import refuse_unknown, softmax_scale
from lln.ops.lln.op import compute_dtype
from lln.ops.moments import Operands as MomentOperands
from lln.ops.moments import moments
from lln.ops.near_far import WEIGHTS, Operands, near_far
from lln.ops.near_far.continued import Past, continue_near_far
from lln.ops.near_far.op import check_reach
from lln.ops.operation import under_autocast
from lln.ops.stretches import over_group, own_boundaries, refuse_stretches

NEUTRAL = (0.0, 0.5, 0.5, 0.5)  # far is the mean of LLN and of the first order of softmax; near as softmax has it


@overload
def near_far_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Scale | None = None,
    beta: Scale | None = None,
    *,
    weights: Tensor | None = None,
    block_size: int = 64,
    neighbours: int = 0,
    first_tokens: int = 0,
    scale: float | None = None,
    feature_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    cu_seqlens: Tensor | None = None,
    state: NearFarState | None = None,
    return_state: Literal[False] = False,
    backend: str = AUTO,
    group: Any = None,
) -> Tensor: ...
@overload
def near_far_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Scale | None = None,
    beta: Scale | None = None,
    *,
    weights: Tensor | None = None,
    block_size: int = 64,
    neighbours: int = 0,
    first_tokens: int = 0,
    scale: float | None = None,
    feature_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    cu_seqlens: Tensor | None = None,
    state: NearFarState | None = None,
    return_state: Literal[True],
    backend: str = AUTO,
    group: Any = None,
) -> tuple[Tensor, NearFarState]: ...
def near_far_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Scale | None = None,
    beta: Scale | None = None,
    *,
    weights: Tensor | None = None,
    block_size: int = 64,
    neighbours: int = 0,
    first_tokens: int = 0,
    scale: float | None = None,
    feature_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    cu_seqlens: Tensor | None = None,
    state: NearFarState | None = None,
    return_state: bool = False,
    backend: str = AUTO,
    group: Any = None,
    **refused: Any,
) -> Tensor | tuple[Tensor, NearFarState]:
    """Softmax over the near keys, moments of the far ones, in time and memory linear in the length:

        out_i = (1 - m_i + m_i w_near) near_i + m_i (w_lln LLN_i + w_mean v_mean_i + w_slope slope_i)

    near_i is softmax over the block of i, `neighbours` blocks on each side (causal: before) and the first `first_tokens` tokens
    of the sequence. All other keys are far: m_i is their estimated share of softmax's denominator, LLN_i is eq. 8 over them,
    v_mean_i their mean value, slope_i = s Cov(v, k) q_i, bounded. The equations are in `lln.ops.near_far.op`. Where nothing is
    far, this is softmax over near, to the bit.

    Args:
        q, k, v: (B, Hq, N, D), (B, Hk, N, D), (B, Hk, N, Dv), Hq a multiple of Hk. Arithmetic is in float32 at least.
        alpha, beta, feature_bias: of LLN, as in `lln_attention`. alpha, beta None: matched to softmax about the mean key; if
            feature_bias is None too, the mean key is subtracted. Causal attention must be given alpha and beta.
        weights: near, LLN, mean and slope, (4,) or (Hq, 4) or (B, Hq, 4); `lln.near_far.fit` finds them in closed form. None:
            (0, 1/2, 1/2, 1/2).
        block_size, neighbours, first_tokens: what is near.
        scale: of the softmax, D**-0.5 by default.
        key_mask, is_causal, cu_seqlens: as in `lln_attention`.
        state, return_state: the past of causal attention, as in `lln_attention`; they take backend='auto': pieces are
            computed by plain torch, a single token without gradients by the fastest.
        backend: 'auto' picks the fastest that takes these tensors.
        group: as in `lln_attention`; over several processes there are no states, and plain torch computes.

    Returns:
        (B, Hq, N, Dv) in the dtype of q; zeros for rows without any key. With return_state, a pair.
    """
    if group is not None:
        return over_group(near_far_attention, locals())
    refuse_unknown(refused)
    if state is not None or return_state:
        refuse_stretches("near_far_attention with a state")
        _check_state_use(is_causal, cu_seqlens, backend)
    x = operands(
        q, k, v, alpha, beta, weights=weights, block_size=block_size, neighbours=neighbours, first_tokens=first_tokens,
        scale=scale, feature_bias=feature_bias, key_mask=key_mask, is_causal=is_causal, cu_seqlens=cu_seqlens, state=state,
    )  # fmt: skip
    with watched("near_far" if state is None else "near_far_step", x) if observers else UNWATCHED:
        if state is None and not return_state:
            return near_far(x, backend).out
        near_far.check(x)
        if state is not None:
            state.check(x)
        with torch.autocast(x.q.device.type, enabled=False):
            out, past = continue_near_far(x, Past.of_nothing(x) if state is None else state.past)
    return (out, NearFarState.of(past, x)) if return_state else out


def operands(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Scale | None = None,
    beta: Scale | None = None,
    *,
    weights: Tensor | None = None,
    block_size: int = 64,
    neighbours: int = 0,
    first_tokens: int = 0,
    scale: float | None = None,
    feature_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    cu_seqlens: Tensor | None = None,
    state: NearFarState | None = None,
) -> Operands:
    """The arguments of `near_far_attention`, checked, as the operation takes them."""
    q, k, v = under_autocast(q, k, v)
    if cu_seqlens is not None:
        cu_seqlens = own_boundaries(cu_seqlens, k.shape[2])
    _check_blocks(q, k, v, block_size, key_mask, is_causal, cu_seqlens)
    check_reach(neighbours, first_tokens)
    scale = softmax_scale(scale, q.shape[3])
    scales = _scales(q, k, alpha, beta, feature_bias, key_mask, is_causal, cu_seqlens, state, scale)
    return Operands(
        q, k, v, *scales, _weights(weights, q), key_mask, _edges(cu_seqlens, q),
        block_size, neighbours, first_tokens, scale, is_causal,
    )  # fmt: skip


def _check_state_use(is_causal: bool, cu_seqlens: Tensor | None, backend: str) -> None:
    if cu_seqlens is not None or not is_causal:
        raise ValueError(
            "a state is the past of causal attention: state and return_state need is_causal=True, and no cu_seqlens"
        )
    if backend != AUTO:
        raise ValueError(
            f"state and return_state choose the backend by themselves: it must be {AUTO!r}, got {backend!r}"
        )


def _scales(
    q: Tensor,
    k: Tensor,
    alpha: Scale | None,
    beta: Scale | None,
    bias: Tensor | None,
    key_mask: Tensor | None,
    is_causal: bool,
    cu_seqlens: Tensor | None,
    state: NearFarState | None,
    scale: float,
) -> _Scales:
    matched = alpha is None and beta is None and state is None
    if alpha is None or beta is None:
        if state is not None:
            own = (state.alpha[:, :, None], state.beta[:, :, None])
        elif is_causal:
            raise ValueError(
                "causal attention needs alpha and beta: matching them from the whole sequence would let the future "
                "into the past. Take them from MomentMatcher (running, fixed or learnable statistics)"
            )
        else:
            own = match_moments(
                q, k, key_mask=key_mask, cu_seqlens=cu_seqlens, scale=scale, center_keys=matched and bias is None
            )
        alpha = own[0] if alpha is None else alpha
        beta = own[1] if beta is None else beta
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    wide_beta = _broadcast("beta", beta, q, sequences, k.shape[1])
    if matched and bias is None:
        mean = _mean_key(k, key_mask, cu_seqlens)
        bias = -(wide_beta * mean.to(wide_beta.dtype)).repeat_interleave(q.shape[1] // k.shape[1], dim=1)[:, :, None]
    return _Scales(
        _broadcast("alpha", alpha, q, sequences, q.shape[1]),
        wide_beta,
        None if bias is None else _broadcast("feature_bias", bias, q, sequences, q.shape[1]),
    )


def _mean_key(k: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """Of each sequence, (S, Hk, D), without gradient, as all statistics."""
    sums = moments(MomentOperands(k.detach(), key_mask, _edges(cu_seqlens, k)))
    return sums.total / sums.count.clamp(min=1)[:, None, None]


def _weights(weights: Tensor | None, q: Tensor) -> Tensor:
    """(B, Hq, 4) in the compute dtype."""
    given = torch.as_tensor(NEUTRAL if weights is None else weights)
    _refuse_what_is_no_real_number("weights", given)
    if given.dim() <= 1:  # those of each head were fitted or learnt, and to look at them would cost a step of decoding
        _refuse_nan("weights", given, or_infinite=True)
    given = given.to(q.device, compute_dtype(q.dtype))
    shape = (q.shape[0], q.shape[1], len(WEIGHTS))
    fits = 1 <= given.dim() <= 3 and all(a in (1, b) for a, b in zip(given.shape[::-1], shape[::-1], strict=False))
    if not fits or given.shape[-1] != len(WEIGHTS):
        raise ValueError(
            f"weights are ({', '.join(WEIGHTS)}) for all heads, for each head or for each sample and head: they must "
            f"broadcast to {shape}, got {tuple(given.shape)}"
        )
    return given.expand(shape)


__all__ = ["NEUTRAL", "NearFarState", "near_far_attention", "operands"]
