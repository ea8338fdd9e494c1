"""The operator every fast backend implements, as a pair of torch custom operators with an explicit backward.

Forward, for each sample and head, with a_il = alpha_l q_il + w_l and b_jl = beta_l k_jl:

    out_i = sum_j s_ij v_j / sum_j s_ij,    s_ij = sum_l exp(a_il + b_jl)        (eq. 8; w is the feature bias)

Backward, with t_i = dout_i / den_i and delta_i = (dout_i . out_i) / den_i, where den_i is the denominator:

    da_il = sum_j exp(a_il + b_jl) (t_i . v_j - delta_i)        dq = alpha da, dalpha = sum_i da q, dw = sum_i da
    db_jl = sum_i exp(a_il + b_jl) (t_i . v_j - delta_i)        dk = beta  db, dbeta  = sum_j db k
    dv_j  = sum_i s_ij t_i

A backend supplies `forward` and `backward` as plain functions of `Operands`; `define` makes them operators that
`torch.compile`, `torch.export`, autograd and `torch.vmap` understand.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

NO_DOUBLE_BACKWARD = (
    "LLN attention has no double backward: its gradient is computed by a kernel that is not itself differentiable. "
    "Call backward without create_graph=True, or use backend='oracle', which is differentiable to any order."
)


class State(NamedTuple):
    """The sums over the keys so far, relative to their maximum c; where there is no key, -inf, 0, 0.

    A state carries no gradient: it is a constant for the piece that starts from it. S is as in `Operands`.
    """

    maximum: Tensor  # c_l = max_j b_jl, (S, Hk, D)
    summed: Tensor  # sum_j exp(b_j - c) v_j^T, (S, Hk, D, Dv)
    normaliser: Tensor  # sum_j exp(b_j - c), (S, Hk, D)

    @staticmethod
    def without_keys(beta: Tensor, value_dim: int) -> "State":
        summed = beta.new_zeros(*beta.shape, value_dim)
        return State(torch.full_like(beta, -torch.inf), summed, torch.zeros_like(beta))

    @staticmethod
    def uninitialised(beta: Tensor, value_dim: int) -> "State":
        shape = beta.shape
        return State(beta.new_empty(*shape), beta.new_empty(*shape, value_dim), beta.new_empty(*shape))


class Operands(NamedTuple):
    """What the operator is applied to. Hq is a multiple of Hk; S is the number of packed sequences, or B.

    Strides are any. alpha, beta, bias and start are in the compute dtype: float64 for float64 inputs, else float32.
    """

    q: Tensor  # (B, Hq, Nq, D)
    k: Tensor  # (B, Hk, Nk, D)
    v: Tensor  # (B, Hk, Nk, Dv)
    alpha: Tensor  # (S, Hq, D)
    beta: Tensor  # (S, Hk, D)
    bias: Tensor | None = None  # w, (S, Hq, D)
    key_mask: Tensor | None = None  # (B, Nk) bool, True where a key counts
    cu_seqlens: Tensor | None = None  # (S + 1,) int64; then B = 1
    start: State | None = None  # the state to go on from
    is_causal: bool = False

    def by_key_head(self, x: Tensor) -> Tensor:
        """(B, Hq, ...) as (B, Hk, groups, ...): query head h reads key head h // groups."""
        return x.unflatten(1, (self.k.shape[1], -1))


Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # of q, k, v, alpha, beta, bias
Forward = Callable[[Operands], tuple[Tensor, State]]  # the output, and the state after the last key
# From the output's gradient, the output, and the state that forward left; where the last argument, `parameter_grads`, is
# False, nobody reads the gradients of alpha, beta and bias.
Backward = Callable[[Tensor, Tensor, Operands, State, bool], Gradients]


@dataclass(frozen=True)
class Operator:
    """A backend's forward as an operator: call it with the arguments of `define`'s forward, in order."""

    name: str
    forward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """States and normalisers are kept in float32 at least, whatever the inputs."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def empty_output(q: Tensor, value_dim: int) -> Tensor:
    """(B, Hq, Nq, Dv), laid out as q is, so that merging the heads afterwards needs no copy."""
    batch, heads, length, _ = q.shape
    if q.stride(1) < q.stride(2):
        return q.new_empty(batch, length, heads, value_dim).transpose(1, 2)
    return q.new_empty(batch, heads, length, value_dim)


def define(name: str, forward: Forward, backward: Backward) -> Operator:
    """Register `lln::{name}_forward` and `lln::{name}_backward` with fake kernels, autograd and a batching rule."""

    def forward_body(
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
        start = _start(start_maximum, start_summed, start_normaliser)
        x = Operands(q, k, v, alpha, beta, bias, key_mask, cu_seqlens, start, is_causal)
        with torch.autocast(q.device.type, enabled=False):
            out, state = forward(x)
        return out, *state

    def backward_body(
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
        start = _start(start_maximum, start_summed, start_normaliser)
        x = Operands(q, k, v, alpha, beta, bias, key_mask, cu_seqlens, start, is_causal)
        with torch.autocast(q.device.type, enabled=False):
            return backward(grad, out, x, State(maximum, summed, normaliser), parameter_grads)

    run_forward = torch.library.custom_op(f"lln::{name}_forward", forward_body, mutates_args=())
    run_backward = torch.library.custom_op(f"lln::{name}_backward", backward_body, mutates_args=())
    run_forward.register_fake(_fake_forward)
    run_backward.register_fake(_fake_backward)
    run_forward.register_autograd(_make_gradient(run_backward), setup_context=_save_for_backward)
    run_backward.register_autograd(_refuse_double_backward, setup_context=_save_nothing)
    run_forward.register_vmap(batching_rule(run_forward, outputs=4))
    run_backward.register_vmap(batching_rule(run_backward, outputs=6))
    return Operator(name, run_forward)


def _start(maximum: Tensor | None, summed: Tensor | None, normaliser: Tensor | None) -> State | None:
    if maximum is None or summed is None or normaliser is None:
        return None
    return State(maximum, summed, normaliser)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return empty_output(q, v.shape[-1]), *State.uninitialised(beta, v.shape[-1])


def _fake_backward(
    grad: Tensor, out: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return (
        empty_output(q, q.shape[-1]),
        empty_output(k, k.shape[-1]),
        empty_output(v, v.shape[-1]),
        torch.empty_like(alpha),
        torch.empty_like(beta),
        torch.empty_like(alpha),
    )


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.is_causal = inputs
    out, maximum, summed, normaliser = output
    ctx.save_for_backward(*tensors, out, maximum, summed, normaliser)


def _make_gradient(run_backward: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor | None, ...]]:
    def gradient(ctx: Any, grad: Tensor, *_state_grads: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, maximum, summed, normaliser = ctx.saved_tensors
        needs = ctx.needs_input_grad
        dq, dk, dv, dalpha, dbeta, dbias = run_backward(
            grad, out, *inputs, maximum, summed, normaliser, ctx.is_causal, any(needs[3:6])
        )
        grads = (dq, dk, dv, dalpha, dbeta, dbias)
        return tuple(g if needed else None for g, needed in zip(grads, needs, strict=False)) + (None,) * 6

    return gradient


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _refuse_double_backward(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(NO_DOUBLE_BACKWARD)


def batching_rule(run: Callable[..., tuple[Tensor, ...]], outputs: int) -> Callable[..., Any]:
    """vmap folds its dimension into the batch, where samples are independent anyway."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        if any(isinstance(a, Tensor) and a.dtype == torch.int64 for a in args):
            raise RuntimeError(
                "vmap over packed sequences (cu_seqlens) is not supported: pack the vmapped samples instead"
            )
        size = info.batch_size
        folded = []
        for arg, dim in zip(args, in_dims, strict=True):
            if isinstance(arg, Tensor):
                arg = arg.movedim(dim, 0) if dim is not None else arg.expand(size, *arg.shape)
                arg = arg.flatten(0, 1)
            folded.append(arg)
        results = run(*folded)
        return tuple(r.unflatten(0, (size, -1)) for r in results), (0,) * outputs

    return rule
