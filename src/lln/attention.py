"""LLN attention and LLN+Diag as functions: they check their arguments, match moments if asked, and pick a backend."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lln import backends
from lln.backends.operator import compute_dtype
from lln.block_diagonal import block_diagonal_attention, check_inputs, continue_blocks
from lln.checks import check_masks, check_qkv
from lln.matching import match_moments
from lln.precision import under_autocast
from lln.state import LLNState

Scale = Tensor | float


def lln_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Scale | None = None,
    beta: Scale | None = None,
    *,
    feature_bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    cu_seqlens: Tensor | None = None,
    state: LLNState | None = None,
    return_state: bool = False,
    backend: str | None = None,
) -> Any:
    """Linear log-normal attention (eq. 8) in time and memory linear in the length:

        out_i = sum_j P_ij v_j,      P_ij ∝ sum_l exp(w_l + alpha_l q_il + beta_l k_jl)

    Args:
        q, k, v: (B, Hq, Nq, D), (B, Hk, Nk, D), (B, Hk, Nk, Dv), Hq a multiple of Hk; any strides; float16, bfloat16,
            float32 or float64. Arithmetic is in float32 at least.
        alpha, beta: how sharply queries and keys count; numbers, or tensors broadcasting to (B, Hq, 1, D) and
            (B, Hk, 1, D), with B the number of sequences where they are packed. None: matched to softmax's concentration
            from q and k, per sample and head, without gradient (`match_moments`). Causal attention must be given them,
            since statistics of the whole sequence would look into the future; `MomentMatcher` provides them.
        feature_bias: w, broadcasting to (B, Hq, 1, D). Subtracting a mean key mu from all keys is w = -beta * mu.
        key_padding_mask: (B, Nk) bool, True where the key counts. Masked keys and values may hold anything.
        is_causal: position i attends to positions up to i.
        cu_seqlens: boundaries 0, n1, n1 + n2, ... of sequences packed into (1, H, total, D).
        state: go on from here (causal only). The state is a constant: no gradient flows into it.
        return_state: return (output, LLNState) instead of the output (causal only).
        backend: 'native', 'chunked' or 'oracle'; None picks the fastest that takes these tensors.

    Returns:
        (B, Hq, Nq, Dv) in the dtype of q, laid out as q is; zeros for rows without any key. With return_state, a pair.
    """
    q, k, v = under_autocast(q, k, v)
    check_qkv(q, k, v)
    check_masks(q, k, key_padding_mask, is_causal, cu_seqlens)
    alpha_, beta_ = _parameters(q, k, alpha, beta, key_padding_mask, is_causal, cu_seqlens, state, None)
    out, final = _run(
        q, k, v, alpha_, beta_, feature_bias, key_padding_mask, is_causal, cu_seqlens, state, return_state, backend
    )
    return (out, final) if return_state else out


def lln_diag_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Scale | None = None,
    beta: Scale | None = None,
    *,
    mix: Scale = 0.5,
    block_size: int = 64,
    scale: float | None = None,
    feature_bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    cu_seqlens: Tensor | None = None,
    state: LLNState | None = None,
    return_state: bool = False,
    backend: str | None = None,
    branch_transform: Callable[[Tensor], Tensor] | None = None,
) -> Any:
    """LLN+Diag (Section 4.2): LLN for the long range, softmax inside blocks for the short range, mixed.

        out = mix * lln_attention(...) + (1 - mix) * block_diagonal_attention(...)

    `mix=0.5` is the paper's average; a tensor of Hq numbers mixes each head on its own. `scale` is that of the softmax
    (D**-0.5 by default) and of what is matched. `branch_transform` acts on each branch before mixing: layers use it for
    dropout, which linear attention cannot apply to weights. The other arguments are those of `lln_attention` and
    `block_diagonal_attention`; Nq must equal Nk.
    """
    q, k, v = under_autocast(q, k, v)
    check_inputs(q, k, v, block_size, key_padding_mask, is_causal, cu_seqlens)
    weight = _mixing_weight(mix, q)
    alpha_, beta_ = _parameters(q, k, alpha, beta, key_padding_mask, is_causal, cu_seqlens, state, scale)
    global_, final = _run(
        q, k, v, alpha_, beta_, feature_bias, key_padding_mask, is_causal, cu_seqlens, state, return_state, backend,
        block_size=block_size,
    )  # fmt: skip
    if state is None and not return_state:
        local = block_diagonal_attention(
            q, k, v, block_size=block_size, scale=scale, key_padding_mask=key_padding_mask,
            is_causal=is_causal, cu_seqlens=cu_seqlens,
        )  # fmt: skip
    else:
        local, block = continue_blocks(
            q, k, v, None if state is None else state.block,
            block_size=block_size, scale=scale, key_padding_mask=key_padding_mask,
        )  # fmt: skip
        final = None if final is None else LLNState(
            final.maximum, final.summed, final.normaliser, final.alpha, final.beta, block
        )  # fmt: skip
    if branch_transform is not None:
        global_, local = branch_transform(global_), branch_transform(local)
    differentiable = any(x.requires_grad for x in (local, global_, weight))
    out = torch.lerp(local, global_, weight) if differentiable else local.lerp_(global_, weight)
    return (out, final) if return_state else out


def _parameters(
    q: Tensor,
    k: Tensor,
    alpha: Scale | None,
    beta: Scale | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    cu_seqlens: Tensor | None,
    state: LLNState | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """alpha (S, Hq, D) and beta (S, Hk, D) in the compute dtype."""
    if alpha is None or beta is None:
        if is_causal or state is not None:
            raise ValueError(
                "causal attention needs alpha and beta: matching them from the whole sequence would let the future "
                "into the past. Take them from MomentMatcher (running, fixed or learnable statistics)"
            )
        matched = match_moments(q, k, key_padding_mask=key_padding_mask, cu_seqlens=cu_seqlens, scale=scale)
        alpha = matched[0] if alpha is None else alpha
        beta = matched[1] if beta is None else beta
    sequences = _sequences(q, cu_seqlens)
    return _broadcast("alpha", alpha, q, sequences, q.shape[1]), _broadcast("beta", beta, q, sequences, k.shape[1])


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    beta: Tensor,
    feature_bias: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    cu_seqlens: Tensor | None,
    state: LLNState | None,
    return_state: bool,
    backend: str | None,
    block_size: int | None = None,
) -> tuple[Tensor, LLNState | None]:
    """The operator on a backend, and the state after it if asked for."""
    name = backends.pick(backend, q, k, v)
    _check_state_use(name, is_causal, cu_seqlens, state, return_state)
    bias = None
    if feature_bias is not None:
        bias = _broadcast("feature_bias", feature_bias, q, _sequences(q, cu_seqlens), q.shape[1])
    start: tuple[Tensor | None, ...] = (None, None, None)
    if state is not None:
        state.check(k, v, alpha, beta, block_size)
        start = (state.maximum, state.summed, state.normaliser)
    edges = None if cu_seqlens is None else cu_seqlens.to(torch.int64)
    out, maximum, summed, normaliser = backends.forward(
        name, q, k, v, alpha, beta, bias, key_padding_mask, edges, *start, is_causal
    )
    if not return_state:
        return out, None
    assert maximum is not None and summed is not None and normaliser is not None
    maximum, summed, normaliser, alpha, beta = (x.detach() for x in (maximum, summed, normaliser, alpha, beta))
    return out, LLNState(maximum, summed, normaliser, alpha, beta)


def _check_state_use(
    backend: str, is_causal: bool, cu_seqlens: Tensor | None, state: LLNState | None, return_state: bool
) -> None:
    if state is None and not return_state:
        return
    if not is_causal:
        raise ValueError("a state is the past of causal attention: state and return_state need is_causal=True")
    if cu_seqlens is not None:
        raise ValueError("packed sequences have no state: run them as a padded batch to go on from their ends")
    if backend == "oracle":
        raise ValueError("the oracle keeps no state: use backend='chunked', or None for the fastest")


def _sequences(q: Tensor, cu_seqlens: Tensor | None) -> int:
    return q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def _broadcast(name: str, x: Scale, q: Tensor, sequences: int, heads: int) -> Tensor:
    """(S, heads, D) in the compute dtype from a number or anything that broadcasts to (S, heads, 1, D)."""
    dtype = compute_dtype(q.dtype)
    if isinstance(x, Tensor) and x.dim() > 0 and x.device != q.device:
        raise ValueError(f"{name} must be on the device of q, {q.device}, got {x.device}")
    x = torch.as_tensor(x, dtype=dtype, device=q.device)
    shape = (sequences, heads, 1, q.shape[3])
    if x.dim() > 4 or any(own not in (1, full) for own, full in zip(x.shape[::-1], shape[::-1], strict=False)):
        raise ValueError(
            f"{name} must broadcast to (batch or sequences, heads, 1, head size) = {shape}, got {tuple(x.shape)}"
        )
    return x.expand(shape)[:, :, 0].contiguous()


def _mixing_weight(mix: Scale, q: Tensor) -> Tensor:
    weight = torch.as_tensor(mix, dtype=q.dtype, device=q.device)
    if weight.dim() > 1 or weight.numel() not in (1, q.shape[1]):
        raise ValueError(f"mix must be a number or one for each of the {q.shape[1]} heads, got {tuple(weight.shape)}")
    return weight.reshape(1, -1, 1, 1)
