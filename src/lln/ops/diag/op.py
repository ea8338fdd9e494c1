"""LLN+Diag (Section 4.2) as one operation: LLN for the long range, softmax inside blocks for the short range, mixed.

    out_i = w_i LLN_i + (1 - w_i) Diag_i          w = 1/2 in the paper

LLN is eq. 8 on `lln_q` and `lln_k` where a conversion has learned maps for it, else on q and k; Diag sees q and k as they are.
The weight is given per head, or per head and row. Backward: the branches receive w dout and (1 - w) dout, and

    dw_i = dout_i . (LLN_i - Diag_i)
"""

from typing import NamedTuple

from torch import Tensor

from lln.ops import checks
from lln.ops.blocks.op import Operands as BlockOperands
from lln.ops.lln.op import Operands as LLNOperands
from lln.ops.lln.op import State, attention, compute_dtype
from lln.ops.operation import Operation, empty_rows


class Operands(NamedTuple):
    """Shapes are those of the two branches (`lln.ops.lln.op`, `lln.ops.blocks.op`), with as many queries as keys."""

    q: Tensor  # (B, Hq, N, D)
    k: Tensor  # (B, Hk, N, D)
    v: Tensor  # (B, Hk, N, Dv)
    lln_q: Tensor | None  # (B, Hq, N, D'), with lln_k (B, Hk, N, D'), for the LLN branch; None: q and k
    lln_k: Tensor | None
    alpha: Tensor  # (S, Hq, D')
    beta: Tensor  # (S, Hk, D')
    bias: Tensor | None  # (S, Hq, D')
    weight: Tensor  # w, (B, Hq, N or 1) in the compute dtype
    key_mask: Tensor | None
    cu_seqlens: Tensor | None
    block_size: int
    scale: float
    is_causal: bool
    keep_branch: bool  # whether `lln_out` is wanted, as it is by a backward pass

    @property
    def lln(self) -> LLNOperands:
        """What the LLN branch is applied to."""
        q = self.q if self.lln_q is None else self.lln_q
        k = self.k if self.lln_k is None else self.lln_k
        return LLNOperands(
            q, k, self.v, self.alpha, self.beta, self.bias, self.key_mask, self.cu_seqlens, is_causal=self.is_causal
        )

    @property
    def blocks(self) -> BlockOperands:
        """What the blocks are applied to."""
        return BlockOperands(
            self.q, self.k, self.v, self.key_mask, self.cu_seqlens, self.block_size, self.scale, self.is_causal
        )


class Results(NamedTuple):
    """The output, laid out as q is, and what backward needs of the LLN branch: its output, or nothing, and its state."""

    out: Tensor  # (B, Hq, N, Dv)
    lln_out: Tensor
    maximum: Tensor
    summed: Tensor
    normaliser: Tensor

    @property
    def state(self) -> State:
        return State(self.maximum, self.summed, self.normaliser)


def _empty(x: Operands) -> Results:
    out = empty_rows(x.q, x.v.shape[-1])
    state = State.uninitialised(x.beta, x.v.shape[-1], x.beta.dtype)
    return Results(out, empty_rows(x.q, x.v.shape[-1]) if x.keep_branch else x.q.new_empty(0), *state)


def _check(x: Operands) -> None:
    checks.check_block_size(x.block_size)
    checks.check_qkv(x.q, x.k, x.v)
    checks.check_one_length(x.q, x.k)
    if (x.lln_q is None) != (x.lln_k is None):
        raise ValueError("give lln_q and lln_k together, or neither")
    if x.lln_q is not None and x.lln_q.shape[:3] != x.q.shape[:3]:
        raise ValueError(
            f"lln_q must have q's batch, heads and length {tuple(x.q.shape[:3])}, got {tuple(x.lln_q.shape)}"
        )
    attention.check(x.lln)
    batch, heads, length, _ = x.q.shape
    rows = x.weight.shape[-1] if x.weight.dim() == 3 else 1
    checks.check_operand(
        "weight", x.weight, (batch, heads, length if rows == length else 1), compute_dtype(x.q.dtype), x.q.device
    )


def _check_values(x: Operands) -> None:
    attention.check_values(x.lln)


diag = Operation(
    "diag",
    Operands,
    Results,
    empty=_empty,
    check=_check,
    check_values=_check_values,
    differentiable=("q", "k", "v", "lln_q", "lln_k", "alpha", "beta", "bias", "weight"),
    flowing=("out",),
)
