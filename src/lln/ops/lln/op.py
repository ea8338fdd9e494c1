"""LLN attention as an operation. For each sample and head, with a_il = alpha_l q_il + w_l and b_jl = beta_l k_jl:

    out_i = sum_j s_ij v_j / sum_j s_ij,    s_ij = sum_l exp(a_il + b_jl)        (eq. 8; w is the feature bias)

over the keys j that count, or, when causal, those of them up to i. A starting state adds keys that came before, by their sums:

    c_l = max_j b_jl,    S_l. = sum_j exp(b_jl - c_l) v_j,    z_l = sum_j exp(b_jl - c_l)

and the final state is that of all keys, the starting ones included. Backward, with t_i = dout_i / den_i and
delta_i = (dout_i . out_i) / den_i, where den_i is the denominator:

    da_il = sum_j exp(a_il + b_jl) (t_i . v_j - delta_i)        dq = alpha da, dalpha = sum_i da q, dw = sum_i da
    db_jl = sum_i exp(a_il + b_jl) (t_i . v_j - delta_i)        dk = beta  db, dbeta  = sum_j db k
    dv_j  = sum_i s_ij t_i

A gradient dS, dz of the final state adds exp(b_j - c) (dS v_j + dz) to db_j and dS^T exp(b_j - c) to dv_j. The maximum c is a
constant: it is only a reference and cancels, whatever it is, as long as everyone who reads S and z reads c with them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops import checks
from lln.ops.operation import Operation, empty_rows


class State(NamedTuple):
    """The sums over keys, relative to their maximum c; where there is no key, -inf, 0, 0. S is as in `Operands`.

    The two sums leave a call in the dtype in which they came with the start, or in the compute dtype where there was none. A
    state that is carried through many calls holds them in `accumulation_dtype`: float32 rounds each time, and from 2^24 tokens
    on, one more token of weight 1 would change nothing.
    """

    maximum: Tensor  # c_l = max_j b_jl, (S, Hk, D)
    summed: Tensor  # sum_j exp(b_j - c) v_j^T, (S, Hk, D, Dv)
    normaliser: Tensor  # sum_j exp(b_j - c), (S, Hk, D)

    @staticmethod
    def without_keys(beta: Tensor, value_dim: int, sums: torch.dtype | None = None) -> "State":
        summed = beta.new_zeros(*beta.shape, value_dim, dtype=sums)
        return State(torch.full_like(beta, -torch.inf), summed, torch.zeros_like(beta, dtype=sums))

    @staticmethod
    def uninitialised(beta: Tensor, value_dim: int, sums: torch.dtype) -> "State":
        shape = beta.shape
        summed, normaliser = (beta.new_empty(size, dtype=sums) for size in ((*shape, value_dim), shape))
        return State(beta.new_empty(shape), summed, normaliser)

    def with_sums_in(self, dtype: torch.dtype) -> "State":
        return State(self.maximum, self.summed.to(dtype), self.normaliser.to(dtype))


class Operands(NamedTuple):
    """What the operation is applied to. Hq is a multiple of Hk; S is the number of packed sequences, or B.

    Strides are any. alpha, beta, bias and the start are in the compute dtype: float64 for float64 inputs, else float32; the
    sums of the start may be in float64 as well.
    """

    q: Tensor  # (B, Hq, Nq, D)
    k: Tensor  # (B, Hk, Nk, D)
    v: Tensor  # (B, Hk, Nk, Dv)
    alpha: Tensor  # (S, Hq, D)
    beta: Tensor  # (S, Hk, D)
    bias: Tensor | None = None  # w, (S, Hq, D)
    key_mask: Tensor | None = None  # (B, Nk) bool, True where a key counts
    cu_seqlens: Tensor | None = None  # (S + 1,) int64; then B = 1
    start_maximum: Tensor | None = None  # the state to go on from; all three or none
    start_summed: Tensor | None = None
    start_normaliser: Tensor | None = None
    is_causal: bool = False

    @property
    def start(self) -> State | None:
        maximum, summed, normaliser = self.start_maximum, self.start_summed, self.start_normaliser
        if maximum is None or summed is None or normaliser is None:
            return None
        return State(maximum, summed, normaliser)

    def starting_from(self, state: State | None) -> "Operands":
        maximum, summed, normaliser = (None, None, None) if state is None else state
        return self._replace(start_maximum=maximum, start_summed=summed, start_normaliser=normaliser)

    @property
    def sums_dtype(self) -> torch.dtype:
        """Of the sums in the state that this call leaves."""
        return self.beta.dtype if self.start_summed is None else self.start_summed.dtype

    def by_key_head(self, x: Tensor) -> Tensor:
        """(B, Hq, ...) as (B, Hk, groups, ...): query head h reads key head h // groups."""
        return x.unflatten(1, (self.k.shape[1], -1))


class Results(NamedTuple):
    """The output, laid out as q is, and the final state."""

    out: Tensor  # (B, Hq, Nq, Dv)
    maximum: Tensor
    summed: Tensor
    normaliser: Tensor

    @property
    def state(self) -> State:
        return State(self.maximum, self.summed, self.normaliser)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """States and normalisers are kept in float32 at least, whatever the inputs."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Of sums over a whole sequence, however long: float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _empty(x: Operands) -> Results:
    return Results(empty_rows(x.q, x.v.shape[-1]), *State.uninitialised(x.beta, x.v.shape[-1], x.sums_dtype))


def _check(x: Operands) -> None:
    checks.check_qkv(x.q, x.k, x.v)
    checks.check_masks(x.q, x.k, x.key_mask, x.is_causal, x.cu_seqlens)
    sequences = x.q.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
    query_heads, (_, key_heads, _, dim), value_dim = x.q.shape[1], x.k.shape, x.v.shape[3]
    dtype = compute_dtype(x.q.dtype)
    checks.check_operand("alpha", x.alpha, (sequences, query_heads, dim), dtype, x.q.device)
    checks.check_operand("beta", x.beta, (sequences, key_heads, dim), dtype, x.q.device)
    if x.bias is not None:
        checks.check_operand("bias", x.bias, (sequences, query_heads, dim), dtype, x.q.device)
    given = [t for t in (x.start_maximum, x.start_summed, x.start_normaliser) if t is not None]
    if not given:
        return
    if len(given) < 3:
        raise ValueError("a starting state has a maximum, sums and a normaliser: give all three or none")
    shape = (sequences, key_heads, dim)
    shapes = {"maximum": shape, "summed": (*shape, value_dim), "normaliser": shape}
    sums = x.sums_dtype if x.sums_dtype == accumulation_dtype(x.q.device) else dtype
    for (name, expected), tensor in zip(shapes.items(), given, strict=True):
        own = dtype if name == "maximum" else sums
        checks.check_operand(f"the state's {name}", tensor, expected, own, x.q.device)


def _check_values(x: Operands) -> None:
    checks.check_boundaries(x.cu_seqlens, x.k.shape[2])


attention = Operation(
    "attention",
    Operands,
    Results,
    empty=_empty,
    check=_check,
    check_values=_check_values,
    differentiable=("q", "k", "v", "alpha", "beta", "bias", "start_summed", "start_normaliser"),
    flowing=("out", "summed", "normaliser"),
)
