"""Near exact, far by moments, as one operation. The keys of a query i are of two kinds:

    near   its own block, `neighbours` blocks on each side (causal: before), the first `first_tokens` tokens of the sequence
    far    all the others

Near is softmax, exact. Far is described by sums that are linear in the length. With s the scale and, over the n far keys of
the query, mu and sigma^2 the mean and variance of each feature of the keys, v_mean the mean value and Cov(v, k) the covariance:

    x_i     = s^2 sum_l q_il^2 sigma_l^2                          how far scores spread
    E(x)    = x / 2 if x <= 2 ln n, else sqrt(2 x ln n) - ln n    the log of a sum of n log-normal numbers, beyond its mean
    M_i     = ln n + s q_i . mu + E(x_i)                          the log of the far part of softmax's denominator
    m_i     = sigmoid(M_i - logsumexp_{j near} s q_i . k_j)       the far share
    slope_i = 2 E'(x_i) s Cov(v, k) q_i                           the first order of softmax's output in q
    far_i   = w_lln LLN_i + w_mean v_mean_i + w_slope slope_i     LLN (eq. 8) over the far keys
    out_i   = (1 - m_i + m_i w_near) near_i + m_i far_i           four weights a head

Where nothing is far, m is 0 and the output is near's softmax, to the bit. Where no key at all counts, it is zero. The slope
is bounded, whatever the scale of q: since 2 E'(x) = min(1, sqrt(2 ln n / x)),

    |slope_i| <= sqrt(2 D ln n) sigma_v          per feature of the values, sigma_v their standard deviation over the far keys

by Cauchy and Schwarz (`docs/near-far.md` has the derivation). Blocks count from the sample's first key that counts, or from the
start of a packed sequence, as in `lln.ops.blocks`, and so do first tokens. Rows before that key are zero.
"""

from typing import NamedTuple

from torch import Tensor

from lln.ops import checks
from lln.ops.lln.op import Operands as LLNOperands
from lln.ops.lln.op import attention, compute_dtype
from lln.ops.operation import Operation, empty_rows

WEIGHTS = ("near", "lln", "mean", "slope")


class Operands(NamedTuple):
    """Hq is a multiple of Hk; S is the number of packed sequences, or B; strides are any."""

    q: Tensor  # (B, Hq, N, D)
    k: Tensor  # (B, Hk, N, D)
    v: Tensor  # (B, Hk, N, Dv)
    alpha: Tensor  # (S, Hq, D), in the compute dtype as the next three
    beta: Tensor  # (S, Hk, D)
    bias: Tensor | None  # (S, Hq, D)
    weights: Tensor  # (B, Hq, 4): near, LLN, mean, slope
    key_mask: Tensor | None  # (B, N) bool, True where a key counts
    cu_seqlens: Tensor | None  # (S + 1,) int64, boundaries of packed sequences; then B = 1
    block_size: int
    neighbours: int
    first_tokens: int
    scale: float
    is_causal: bool

    @property
    def lln(self) -> LLNOperands:
        """LLN on the same inputs: what its parameters must fit."""
        return LLNOperands(
            self.q, self.k, self.v, self.alpha, self.beta, self.bias, self.key_mask, self.cu_seqlens,
            is_causal=self.is_causal,
        )  # fmt: skip

    def by_key_head(self, x: Tensor) -> Tensor:
        """(B, Hq, ...) as (B, Hk, groups, ...): query head h reads key head h // groups."""
        return x.unflatten(1, (self.k.shape[1], -1))


class Results(NamedTuple):
    out: Tensor  # (B, Hq, N, Dv), laid out as q is


def check_reach(neighbours: int, first_tokens: int) -> None:
    for name, number in (("neighbours", neighbours), ("first_tokens", first_tokens)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"{name} must be a whole number of at least 0, got {number!r}")


def _empty(x: Operands) -> Results:
    return Results(empty_rows(x.q, x.v.shape[-1]))


def _check(x: Operands) -> None:
    checks.check_block_size(x.block_size)
    check_reach(x.neighbours, x.first_tokens)
    checks.check_qkv(x.q, x.k, x.v)
    checks.check_one_length(x.q, x.k)
    attention.check(x.lln)
    shape = (x.q.shape[0], x.q.shape[1], len(WEIGHTS))
    checks.check_operand("weights", x.weights, shape, compute_dtype(x.q.dtype), x.q.device)


def _check_values(x: Operands) -> None:
    checks.check_boundaries(x.cu_seqlens, x.k.shape[2])


near_far = Operation(
    "near_far",
    Operands,
    Results,
    empty=_empty,
    check=_check,
    check_values=_check_values,
    differentiable=("q", "k", "v", "alpha", "beta", "bias", "weights"),
    flowing=("out",),
)
