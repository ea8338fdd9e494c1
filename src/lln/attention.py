"""The public functions: LLN attention, attention inside blocks, and LLN+Diag. Arguments are checked and packed here, once."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from lln.matching import match_moments
from lln.observers import UNWATCHED, observers, watched
from lln.ops import blocks as block_ops
from lln.ops import diag as diag_ops
from lln.ops import lln as lln_ops
from lln.ops.backends import AUTO
from lln.ops.blocks.continued import continue_blocks
from lln.ops.blocks.open_block import OpenBlock
from lln.ops.checks import (
    check_block_size,
    check_boundaries,
    check_masks,
    check_one_length,
    check_qkv,
    refuse_unknown,
    softmax_scale,
)
from lln.ops.diag.both import mixed
from lln.ops.lln.frames import attention_over_frames, check_frame_size
from lln.ops.lln.op import accumulation_dtype, compute_dtype
from lln.ops.operation import under_autocast
from lln.ops.stretches import over_group, own_boundaries, refuse_stretches
from lln.state import LLNState

Scale = Tensor | float


@overload
def lln_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Scale | None = None,
    beta: Scale | None = None,
    *,
    feature_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    frame_size: int | None = None,
    cu_seqlens: Tensor | None = None,
    state: LLNState | None = None,
    return_state: Literal[False] = False,
    backend: str = AUTO,
    group: Any = None,
) -> Tensor: ...
@overload
def lln_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Scale | None = None,
    beta: Scale | None = None,
    *,
    feature_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    frame_size: int | None = None,
    cu_seqlens: Tensor | None = None,
    state: LLNState | None = None,
    return_state: Literal[True],
    backend: str = AUTO,
    group: Any = None,
) -> tuple[Tensor, LLNState]: ...
def lln_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Scale | None = None,
    beta: Scale | None = None,
    *,
    feature_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    frame_size: int | None = None,
    cu_seqlens: Tensor | None = None,
    state: LLNState | None = None,
    return_state: bool = False,
    backend: str = AUTO,
    group: Any = None,
    **refused: Any,
) -> Tensor | tuple[Tensor, LLNState]:
    """Linear log-normal attention (eq. 8), in time and memory linear in the length:

        out_i = sum_j P_ij v_j,      P_ij ∝ sum_l exp(w_l + alpha_l q_il + beta_l k_jl)

    Args:
        q, k, v: (B, Hq, Nq, D), (B, Hk, Nk, D) and (B, Hk, Nk, Dv), with Hq a multiple of Hk and any strides. float16,
            bfloat16, float32 or float64; computed in float32 or better.
        alpha, beta: sharpness of queries and keys: numbers, or tensors that broadcast to (B, Hq, 1, D) and (B, Hk, 1, D).
            For packed sequences, B is their number. None takes the values of `state`, or else matches softmax's
            concentration on q and k per sample and head, without gradient (`match_moments`). Causal attention requires
            them, because statistics of the whole sequence would look into the future; `MomentMatcher` provides them.
        feature_bias: w, broadcasts to (B, Hq, 1, D). w = -beta * mu subtracts the mean key mu from all keys.
        key_mask: (B, Nk) bool, False for masked keys. Masked keys and values may hold anything, even NaN.
        is_causal: position i attends to positions up to i.
        frame_size: with is_causal, position i attends to its whole frame of this many positions and to all earlier frames,
            as in video. Frames start at the first unmasked key, or where `state` ends.
        cu_seqlens: boundaries 0, n1, n1 + n2, ... of sequences packed into (1, H, total, D).
        state: sums over earlier keys. If causal, they are the past. Otherwise every query sees them in addition to the keys
            given here, of which there may be none (Nk = 0). Gradients flow into it.
        return_state: return (output, LLNState), with sums over all keys including those of `state`.
        backend: 'auto' picks the fastest that supports these tensors; `lln info` lists all.
        group: process group, or device-mesh dimension, that shares the sequence. q, k, v and key_mask are then this process's
            part of it (`lln.parallel`).

    Returns:
        (B, Hq, Nq, Dv) with the dtype and memory layout of q; zeros for rows without keys. With return_state, a pair.
    """
    if group is not None:
        return over_group(lln_attention, locals())
    refuse_unknown(refused)
    q, k, v = under_autocast(q, k, v)
    if cu_seqlens is not None:
        cu_seqlens = own_boundaries(cu_seqlens, k.shape[2])
    k, v, key_mask = _a_key_at_least(k, v, key_mask, is_causal, state)
    check_qkv(q, k, v)
    _check_masks(q, k, key_mask, is_causal, cu_seqlens)
    _check_frames(frame_size, is_causal, cu_seqlens, None)
    _check_state_use(cu_seqlens, state, return_state)
    scales = _scales(q, k, v, alpha, beta, feature_bias, key_mask, is_causal, cu_seqlens, state, None)
    x = _lln_operands(q, k, v, scales, key_mask, cu_seqlens, is_causal, state, None)
    with watched("attention", x) if observers else UNWATCHED:
        found = _attention(x, frame_size, backend)
    if not return_state:
        return found.out
    return found.out, _state(found, scales)


def block_diagonal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_size: int = 64,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = AUTO,
    group: Any = None,
    **refused: Any,
) -> Tensor:
    """Softmax attention inside consecutive blocks, in time and memory linear in the length.

        out_i = sum_{j in block(i)} softmax_j(scale * q_i . k_j) v_j,      block(i) = floor((i - first) / block_size)

    q is (B, Hq, N, D), k (B, Hk, N, D) and v (B, Hk, N, Dv), with Hq a multiple of Hk; the output is (B, Hq, N, Dv). Blocks
    start at the first unmasked key, or at the start of a packed sequence; the last one may be shorter. `scale` is D**-0.5 by
    default. `key_mask` (B, N) is False for masked keys. Rows without keys give zeros.
    """
    if group is not None:
        return over_group(block_diagonal_attention, locals())
    refuse_unknown(refused)
    q, k, v = under_autocast(q, k, v)
    if cu_seqlens is not None:
        cu_seqlens = own_boundaries(cu_seqlens, k.shape[2])
    _check_blocks(q, k, v, block_size, key_mask, is_causal, cu_seqlens)
    scale = softmax_scale(scale, q.shape[3])
    x = block_ops.Operands(q, k, v, key_mask, _edges(cu_seqlens, q), block_size, scale, is_causal)
    with watched("blocks", x) if observers else UNWATCHED:
        return block_ops.blocks(x, backend).out


@overload
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
    lln_q: Tensor | None = None,
    lln_k: Tensor | None = None,
    feature_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    frame_size: int | None = None,
    cu_seqlens: Tensor | None = None,
    state: LLNState | None = None,
    return_state: Literal[False] = False,
    backend: str = AUTO,
    group: Any = None,
    branch_transform: Callable[[Tensor], Tensor] | None = None,
) -> Tensor: ...
@overload
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
    lln_q: Tensor | None = None,
    lln_k: Tensor | None = None,
    feature_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    frame_size: int | None = None,
    cu_seqlens: Tensor | None = None,
    state: LLNState | None = None,
    return_state: Literal[True],
    backend: str = AUTO,
    group: Any = None,
    branch_transform: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, LLNState]: ...
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
    lln_q: Tensor | None = None,
    lln_k: Tensor | None = None,
    feature_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    frame_size: int | None = None,
    cu_seqlens: Tensor | None = None,
    state: LLNState | None = None,
    return_state: bool = False,
    backend: str = AUTO,
    group: Any = None,
    branch_transform: Callable[[Tensor], Tensor] | None = None,
    **refused: Any,
) -> Tensor | tuple[Tensor, LLNState]:
    """LLN+Diag (Section 4.2): LLN for the long range, softmax inside blocks for the short range, mixed.

        out = mix * lln_attention(...) + (1 - mix) * block_diagonal_attention(...)

    `mix=0.5` is the paper's average. A tensor of Hq numbers sets it per head, one that broadcasts to (B, Hq, N) per row.
    `scale` is the softmax scale (default D**-0.5), also used for matching. `lln_q` and `lln_k`, given together, replace q and
    k in the LLN branch. `branch_transform` is applied to each branch before mixing; layers use it for dropout, which linear
    attention cannot apply to weights. A state (causal only) holds LLN's sums and the open block. With `frame_size`, a
    multiple of `block_size`, blocks are bidirectional like frames. The other arguments are those of `lln_attention` and
    `block_diagonal_attention`; Nq must equal Nk.
    """
    if group is not None:
        return over_group(lln_diag_attention, locals())
    refuse_unknown(refused)
    q, k, v = under_autocast(q, k, v)
    if cu_seqlens is not None:
        cu_seqlens = own_boundaries(cu_seqlens, k.shape[2])
    _check_blocks(q, k, v, block_size, key_mask, is_causal, cu_seqlens)
    _check_frames(frame_size, is_causal, cu_seqlens, block_size)
    _check_state_use(cu_seqlens, state, return_state)
    if (state is not None or return_state) and not is_causal:
        raise ValueError(
            "a state of LLN+Diag is the past of causal attention: state and return_state need is_causal=True"
        )
    far_q, far_k = _far(q, k, lln_q, lln_k)
    scales = _scales(far_q, far_k, v, alpha, beta, feature_bias, key_mask, is_causal, cu_seqlens, state, scale)
    apart = branch_transform is not None or state is not None or return_state or frame_size is not None
    x = diag_ops.Operands(
        q, k, v, None if lln_q is None else far_q, None if lln_k is None else far_k,
        scales.alpha, scales.beta, scales.bias, _mixing_weight(mix, q), key_mask, _edges(cu_seqlens, q), block_size,
        softmax_scale(scale, q.shape[3]), is_causal,
        keep_branch=torch.is_grad_enabled() and not apart,
    )  # fmt: skip
    with watched("diag" if state is None else "diag_step", x) if observers else UNWATCHED:
        if not apart:
            return diag_ops.diag(x, backend).out
        open_blocks = block_size if frame_size is None else None  # at the end of a frame none is open
        past = _lln_operands(far_q, far_k, v, scales, key_mask, cu_seqlens, is_causal, state, open_blocks)
        start, block = past.start, None if state is None else state.block
        if branch_transform is None and start is not None and block is not None and _is_step(x, start, block):
            step = diag_ops.diag_step(diag_ops.StepOperands.of(x, start, block), backend)
            after = LLNState(
                step.maximum, step.summed, step.normaliser, past.alpha.detach(), past.beta.detach(), step.block
            )
            return (step.out, after) if return_state else step.out
        found = _attention(past, frame_size, backend)
        far = found.out
        if frame_size is not None:
            near = block_ops.blocks(x.blocks._replace(is_causal=False), backend).out
        elif state is None and not return_state:
            near = block_ops.blocks(x.blocks, backend).out
        else:
            near, block = continue_blocks(
                q, k, v, block, block_size=block_size, scale=x.scale, key_mask=key_mask, backend=backend
            )
        if branch_transform is not None:
            far, near = branch_transform(far), branch_transform(near)
        out = mixed(near, far, x.weight, q)
    return (out, replace(_state(found, scales), block=block)) if return_state else out


def _attention(x: lln_ops.Operands, frame_size: int | None, backend: str) -> lln_ops.Results:
    return lln_ops.attention(x, backend) if frame_size is None else attention_over_frames(x, frame_size, backend)


def _is_step(x: diag_ops.Operands, start: lln_ops.State, block: OpenBlock) -> bool:
    """Whether one token is decoded without gradients."""
    if x.q.shape[2] != 1 or torch._C._are_functorch_transforms_active():
        return False
    given = (x.q, x.k, x.v, x.lln_q, x.lln_k, x.alpha, x.beta, x.bias, x.weight, *start, block.keys, block.values)
    return not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given))


class _Scales(NamedTuple):
    """In the compute dtype, one row per sample or packed sequence."""

    alpha: Tensor  # (S, Hq, D)
    beta: Tensor  # (S, Hk, D)
    bias: Tensor | None  # (S, Hq, D)


def _scales(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Scale | None,
    beta: Scale | None,
    bias: Tensor | None,
    key_mask: Tensor | None,
    is_causal: bool,
    cu_seqlens: Tensor | None,
    state: LLNState | None,
    scale: float | None,
) -> _Scales:
    if alpha is None or beta is None:
        if state is not None:
            own = (state.alpha[:, :, None], state.beta[:, :, None])
        elif is_causal:
            raise ValueError(
                "causal attention needs alpha and beta: matching them from the whole sequence would let the future "
                "into the past. Take them from MomentMatcher (running, fixed or learnable statistics)"
            )
        else:
            own = match_moments(q, k, key_mask=key_mask, cu_seqlens=cu_seqlens, scale=scale)
        alpha = own[0] if alpha is None else alpha
        beta = own[1] if beta is None else beta
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return _Scales(
        _broadcast("alpha", alpha, q, sequences, q.shape[1]),
        _broadcast("beta", beta, q, sequences, k.shape[1]),
        None if bias is None else _broadcast("feature_bias", bias, q, sequences, q.shape[1]),
    )


def _lln_operands(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scales: _Scales,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    is_causal: bool,
    state: LLNState | None,
    block_size: int | None,
) -> lln_ops.Operands:
    x = lln_ops.Operands(q, k, v, *scales, key_mask, _edges(cu_seqlens, q), is_causal=is_causal)
    if state is None:
        return x
    state.check(k, v, scales.alpha, scales.beta, block_size)
    return x.starting_from(lln_ops.State(state.maximum, state.summed, state.normaliser))


def _state(found: lln_ops.Results, scales: _Scales) -> LLNState:
    sums = found.state.with_sums_in(accumulation_dtype(found.out.device))
    return LLNState(*sums, scales.alpha.detach(), scales.beta.detach())


def _a_key_at_least(
    k: Tensor, v: Tensor, key_mask: Tensor | None, is_causal: bool, state: LLNState | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries that only read a state come without keys; kernels get one that does not count."""
    if not (isinstance(k, Tensor) and k.dim() == 4 and k.shape[2] == 0 and state is not None and not is_causal):
        return k, v, key_mask
    batch, heads, _, dim = k.shape
    no_key = torch.zeros(batch, 1, dtype=torch.bool, device=k.device)
    return k.new_zeros(batch, heads, 1, dim), v.new_zeros(batch, heads, 1, v.shape[-1]), no_key


def _far(q: Tensor, k: Tensor, lln_q: Tensor | None, lln_k: Tensor | None) -> tuple[Tensor, Tensor]:
    """What the LLN branch sees as queries and keys."""
    if lln_q is None and lln_k is None:
        return q, k
    if lln_q is None or lln_k is None:
        raise ValueError("give lln_q and lln_k together, or neither")
    lln_q, lln_k, _ = under_autocast(lln_q, lln_k, lln_k)
    for name, mapped, own in (("lln_q", lln_q, q), ("lln_k", lln_k, k)):
        if mapped.shape[:3] != own.shape[:3] or mapped.dtype != own.dtype:
            raise ValueError(
                f"{name} must have the batch, heads, length and dtype of {name[-1]}, {tuple(own.shape[:3])} and {own.dtype}, "
                f"got {tuple(mapped.shape)} and {mapped.dtype}"
            )
    return lln_q, lln_k


def _check_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_size: int,
    key_mask: Tensor | None,
    is_causal: bool,
    cu_seqlens: Tensor | None,
) -> None:
    check_block_size(block_size)
    check_qkv(q, k, v)
    check_one_length(q, k)
    _check_masks(q, k, key_mask, is_causal, cu_seqlens)


def _check_masks(q: Tensor, k: Tensor, key_mask: Tensor | None, is_causal: bool, cu_seqlens: Tensor | None) -> None:
    check_masks(q, k, key_mask, is_causal, cu_seqlens)
    if not torch.compiler.is_compiling():  # reading the boundaries would break the graph; there the operator does it
        check_boundaries(cu_seqlens, k.shape[2])


def _check_frames(frame_size: int | None, is_causal: bool, cu_seqlens: Tensor | None, block_size: int | None) -> None:
    if frame_size is not None:
        refuse_stretches("frame_size")
        if observers:
            raise NotImplementedError(
                "attention over frames cannot be measured: remove the probe, or leave frame_size out"
            )
        check_frame_size(frame_size, is_causal, cu_seqlens, block_size)


def _check_state_use(cu_seqlens: Tensor | None, state: LLNState | None, return_state: bool) -> None:
    if cu_seqlens is not None and (state is not None or return_state):
        raise ValueError("packed sequences have no state: run them as a padded batch to go on from their ends")


def _edges(cu_seqlens: Tensor | None, q: Tensor) -> Tensor | None:
    return None if cu_seqlens is None else cu_seqlens.to(q.device, torch.int64)


def _broadcast(name: str, x: Scale, q: Tensor, sequences: int, heads: int) -> Tensor:
    """(S, heads, D) in the compute dtype from a number or anything that broadcasts to (S, heads, 1, D)."""
    dtype = compute_dtype(q.dtype)
    _refuse_what_is_no_real_number(name, x)
    if isinstance(x, Tensor) and x.dim() > 0 and x.device != q.device:
        raise ValueError(f"{name} must be on the device of q, {q.device}, got {x.device}")
    _refuse_nan(name, x, or_infinite=name != "feature_bias")  # where a bias of -inf takes a feature out
    x = torch.as_tensor(x, dtype=dtype, device=q.device)
    shape = (sequences, heads, 1, q.shape[3])
    if x.dim() > 4 or any(own not in (1, full) for own, full in zip(x.shape[::-1], shape[::-1], strict=False)):
        raise ValueError(
            f"{name} must broadcast to (batch or sequences, heads, 1, head size) = {shape}, got {tuple(x.shape)}"
        )
    return x.expand(shape)[:, :, 0].contiguous()


def _refuse_what_is_no_real_number(name: str, x: Scale) -> None:
    if isinstance(x, complex | str) or (isinstance(x, Tensor) and not (x.is_floating_point() or x.dtype in _WHOLE)):
        raise TypeError(f"{name} must be real numbers, got {x.dtype if isinstance(x, Tensor) else repr(x)}")


def _refuse_nan(name: str, x: Scale, or_infinite: bool) -> None:
    """Looked for where it costs nothing. What has four dimensions was matched, and belongs to samples that may be NaN."""
    if isinstance(x, Tensor):
        if not x.is_cpu or x.dim() >= 4 or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return
        wrong = ~x.isfinite() if or_infinite else x.isnan()
        if bool(wrong.any()):
            raise ValueError(f"{name} must be {'finite ' if or_infinite else ''}numbers, got {x[wrong][0].item()}")
    elif x != x or (or_infinite and abs(x) == float("inf")):
        raise ValueError(f"{name} must be {'finite ' if or_infinite else ''}numbers, got {x}")


_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def _mixing_weight(mix: Scale, q: Tensor) -> Tensor:
    """(B, Hq, N or 1) in the compute dtype."""
    _refuse_what_is_no_real_number("mix", mix)
    if not isinstance(mix, Tensor) or mix.dim() <= 1:  # one of each row is the work of whoever made it
        _refuse_nan("mix", mix, or_infinite=True)
    if isinstance(mix, float | int):
        return q.new_full((1, 1, 1), mix, dtype=compute_dtype(q.dtype)).expand(q.shape[0], q.shape[1], 1)
    weight = torch.as_tensor(mix, dtype=compute_dtype(q.dtype), device=q.device)
    shape = batch, heads, _ = q.shape[:3]
    by_row = weight.reshape(-1, 1) if weight.dim() <= 1 else weight
    if weight.dim() > 3 or any(own not in (1, n) for own, n in zip(by_row.shape[::-1], shape[::-1], strict=False)):
        raise ValueError(
            f"mix must be a number, one for each of the {heads} heads, or broadcast to (batch, heads, length) = "
            f"{tuple(shape)}, got {tuple(weight.shape)}"
        )
    return by_row.expand(batch, heads, by_row.shape[-1])


__all__ = ["block_diagonal_attention", "lln_attention", "lln_diag_attention"]
