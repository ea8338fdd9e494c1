"""One more token of causal LLN+Diag as one operation, for decoding: LLN goes on from its sums, the token joins the open block.

    out = w LLN(q; sums, k, v) + (1 - w) softmax(scale q . K) V          K, V: the open block with k and v in it

Results are the output and the state after the token. Without gradients: a step that needs them runs the branches apart.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops import checks
from lln.ops.backends import Backend
from lln.ops.blocks.op import OpenOperands, open_block
from lln.ops.blocks.open_block import OpenBlock
from lln.ops.diag.both import mixed
from lln.ops.diag.op import Operands
from lln.ops.lln.op import Operands as LLNOperands
from lln.ops.lln.op import Results as LLNResults
from lln.ops.lln.op import State, attention, compute_dtype
from lln.ops.operation import Operation, empty_rows


class StepOperands(NamedTuple):
    """Shapes are those of LLN+Diag (`lln.ops.diag.op`) for a single position, and of the state (`lln.state`)."""

    q: Tensor  # (B, Hq, 1, D)
    k: Tensor  # (B, Hk, 1, D)
    v: Tensor  # (B, Hk, 1, Dv)
    lln_q: Tensor | None
    lln_k: Tensor | None
    alpha: Tensor
    beta: Tensor
    bias: Tensor | None
    weight: Tensor  # (B, Hq, 1)
    key_mask: Tensor | None  # (B, 1)
    start_maximum: Tensor
    start_summed: Tensor
    start_normaliser: Tensor
    keys: Tensor  # (B, Hk, block, D), and so on: the open block
    values: Tensor
    counts: Tensor
    filled: Tensor
    started: Tensor
    scale: float

    @staticmethod
    def of(x: Operands, start: State, block: OpenBlock) -> "StepOperands":
        """The token that x has, after the state and the block."""
        given = (x.q, x.k, x.v, x.lln_q, x.lln_k, x.alpha, x.beta, x.bias, x.weight, x.key_mask)
        of_block = (block.keys, block.values, block.counts, block.filled, block.started)
        return StepOperands(*given, *start, *of_block, scale=x.scale)

    @property
    def lln(self) -> LLNOperands:
        q = self.q if self.lln_q is None else self.lln_q
        k = self.k if self.lln_k is None else self.lln_k
        start = (self.start_maximum, self.start_summed, self.start_normaliser)
        return LLNOperands(q, k, self.v, self.alpha, self.beta, self.bias, self.key_mask, None, *start, is_causal=True)

    @property
    def block(self) -> OpenBlock:
        return OpenBlock(self.keys, self.values, self.counts, self.filled, self.started)


class StepResults(NamedTuple):
    """The output, laid out as q is, and the state after the token."""

    out: Tensor  # (B, Hq, 1, Dv)
    maximum: Tensor
    summed: Tensor
    normaliser: Tensor
    keys: Tensor
    values: Tensor
    counts: Tensor
    filled: Tensor
    started: Tensor

    @property
    def block(self) -> OpenBlock:
        return OpenBlock(self.keys, self.values, self.counts, self.filled, self.started)


def step_of(name: str, **options: bool) -> Backend:
    """The step by the branches' backends called `name`, one after the other, and a pass that mixes them."""
    far, near = attention.backends[name], open_block.backends[name]

    def refuses(x: StepOperands) -> str | None:
        return far.refuses(x.lln) or near.refuses(_near(x, x.keys, x.values, x.counts))

    return Backend(name, _forward_by(far, near), None, refuses, far.unavailable, expected_on=far.expected_on, **options)


def _forward_by(far: Backend, near: Backend) -> Callable[[StepOperands], StepResults]:
    def forward(x: StepOperands) -> StepResults:
        found: LLNResults = far.forward(x.lln)
        counts = x.key_mask
        if counts is None:
            counts = torch.ones(x.k.shape[0], 1, dtype=torch.bool, device=x.k.device)
        keys, values, seen, after = x.block.with_token(x.k, x.v, counts)
        local = near.forward(_near(x, keys, values, seen)).out
        out = mixed(local, found.out, x.weight, x.q)
        return StepResults(out, *found.state, keys, values, after.counts, after.filled, after.started)

    return forward


def _near(x: StepOperands, keys: Tensor, values: Tensor, seen: Tensor) -> OpenOperands:
    return OpenOperands(x.q, keys, values, seen, x.scale)


def _empty(x: StepOperands) -> StepResults:
    out = empty_rows(x.q, x.v.shape[-1])
    state = State.uninitialised(x.beta, x.v.shape[-1], x.start_summed.dtype)
    block = (torch.empty_like(t) for t in (x.keys, x.values, x.counts, x.filled, x.started))
    return StepResults(out, *state, *block)


def _check(x: StepOperands) -> None:
    attention.check(x.lln)
    if x.lln_q is not None:
        checks.check_qkv(x.q, x.k, x.v)
    if x.q.shape[2] != 1 or x.k.shape[2] != 1:
        raise ValueError(f"a step takes one token, got {x.q.shape[2]} queries and {x.k.shape[2]} keys")
    (batch, heads, _, dim), dtype, device = x.k.shape, x.q.dtype, x.q.device
    size = x.keys.shape[2] if x.keys.dim() == 4 else 1
    checks.check_operand("weight", x.weight, (batch, x.q.shape[1], 1), compute_dtype(dtype), device)
    checks.check_operand("the block's keys", x.keys, (batch, heads, size, dim), dtype, device)
    checks.check_operand("the block's values", x.values, (batch, heads, size, x.v.shape[3]), dtype, device)
    checks.check_operand("the block's counts", x.counts, (batch, size), torch.bool, device)
    checks.check_operand("the block's filled", x.filled, (batch,), torch.int64, device)
    checks.check_operand("the block's started", x.started, (batch,), torch.bool, device)


def _check_values(x: StepOperands) -> None:
    x.block.check_filled()


diag_step = Operation(
    "diag_step", StepOperands, StepResults, empty=_empty, check=_check, check_values=_check_values
)  # fmt: skip
