"""The contract of softmax inside blocks and of LLN+Diag. Every backend passes these tests unchanged."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lln.ops import blocks, diag
from lln.ops.masks import allowed_pairs, block_of_positions, masked_softmax
from tests.ops.cases import Case, Inputs, build, cases
from tests.ops.subjects import OPERATIONS, Subject, compute, every_subject, subjects
from tests.ops.tolerance import GRADIENT_FACTOR, OUTPUT_FACTOR, assert_as_good, plain

EXAMPLES = int(os.environ.get("LLN_CONTRACT_EXAMPLES", 120))
every_operation = pytest.mark.parametrize("subject", [*subjects("blocks"), *subjects("diag")], ids=str)


@dataclasses.dataclass(frozen=True)
class Mixture:
    """What LLN+Diag has beyond the operands of LLN."""

    block_size: int = 16
    by_row: bool = False
    mapped: bool = False
    scale: float = 0.3


def square(case: Case) -> Case:
    return dataclasses.replace(case, keys=case.queries)


mixtures = st.builds(
    Mixture, st.sampled_from((1, 3, 16, 64, 200)), st.booleans(), st.booleans(), st.sampled_from((0.3, 1.0, 0.0, -0.5))
)


def operands(operation: str, inputs: Inputs, mixture: Mixture) -> Any:
    """The record of an operation, from drawn inputs of moderate scale: softmax at sigma 64 is a maximum, and tests nothing."""
    common = (inputs.key_mask, inputs.cu_seqlens)
    if operation == "blocks":
        return blocks.Operands(inputs.q, inputs.k, inputs.v, *common, mixture.block_size, mixture.scale, inputs.causal)
    generator = torch.Generator().manual_seed(7)
    batch, heads, length, _ = inputs.q.shape
    weight = torch.rand(batch, heads, length if mixture.by_row else 1, generator=generator, dtype=torch.float64)
    far = (inputs.q * 0.5, inputs.k.flip(-1)) if mixture.mapped else (None, None)
    return diag.Operands(
        inputs.q, inputs.k, inputs.v, *far, inputs.alpha, inputs.beta, inputs.bias, weight.to(inputs.alpha.dtype), *common,
        mixture.block_size, mixture.scale, inputs.causal, keep_branch=True,
    )  # fmt: skip


def plainly(x: Any) -> Tensor:
    """The formula written plainly, in the inputs' own dtype, with autograd's backward."""
    if isinstance(x, diag.Operands):
        far = x.lln
        inputs = Inputs(far.q, far.k, far.v, far.alpha, far.beta, far.bias, far.key_mask, far.cu_seqlens, far.is_causal)
        weight = x.weight.to(x.q.dtype)[..., None]
        return weight * plain(inputs) + (1 - weight) * plainly(x.blocks)
    groups = x.q.shape[1] // x.k.shape[1]
    k, v = (t.repeat_interleave(groups, dim=1) for t in (x.k, x.v))
    scores = x.q @ k.mT * x.scale
    block = block_of_positions(k.shape[2], x.block_size, x.key_mask, x.cu_seqlens, k.device)
    allowed = allowed_pairs(scores, x.key_mask, None, x.is_causal) & (block[:, None, :, None] == block[:, None, None])
    return masked_softmax(scores, allowed) @ v


def widened(x: Any) -> Any:
    return type(x)(*(t.double() if isinstance(t, Tensor) and t.is_floating_point() else t for t in x))


def check(subject: Subject, x: Any) -> None:
    check_by(subject.operation, lambda y: compute(subject, y).out, x)


def check_by(name_of_operation: str, compute_actual: Callable[[Any], Tensor], x: Any) -> None:
    operation = OPERATIONS[name_of_operation]
    names = [n for n in operation.differentiable if getattr(x, n) is not None]
    upstream = torch.randn(*x.q.shape[:3], x.v.shape[3], dtype=torch.float64)

    def results(compute_out: Any, y: Any) -> list[Tensor]:
        leaves = {n: getattr(y, n).detach().requires_grad_() for n in names}
        out = compute_out(y._replace(**leaves))
        return [
            out.detach(),
            *torch.autograd.grad(out, list(leaves.values()), upstream.to(out.dtype), allow_unused=True),
        ]

    actual = results(compute_actual, x)
    true = results(lambda y: operation(y, "oracle").out, widened(x))
    measure = results(plainly, x)
    unit = torch.finfo(x.q.dtype).eps
    # Rounding is counted in the sizes of the terms: here of values, and of what meets them on the way back.
    # Masked values may be huge without counting, and a scale multiplies the gradient of the scores.
    largest = max(float(t.detach().abs().max()) for t in (x.q, x.k, x.v, upstream)) + 1.0
    for name, factor, a, t, p in zip(
        ("output", *names), (OUTPUT_FACTOR, *[GRADIENT_FACTOR] * len(names)), actual, true, measure, strict=True
    ):
        if t is None:
            continue
        size = float(x.v.detach().abs().max()) if name == "output" else _terms(name, largest, x)
        assert torch.isfinite(a).all(), f"{name} is not finite"
        assert_as_good(a, [p], t, factor, size, unit, 1e-15 * largest, name)


def _terms(name: str, largest: float, x: Any) -> float:
    """The size of the terms of a gradient: upstream times values, summed over features, times what it multiplies."""
    value = float(x.v.detach().abs().max()) * largest * x.v.shape[3] ** 0.5
    if name in ("q", "k"):
        return value * largest
    return value * (largest if name in ("alpha", "beta") else 1.0)


@every_operation
@settings(max_examples=EXAMPLES)
@given(case=cases().map(square), mixture=mixtures)
def test_outputs_and_gradients_agree_with_the_oracle(subject: Subject, case: Case, mixture: Mixture) -> None:
    case = dataclasses.replace(case, sigma=min(case.sigma, 3.0))
    check(subject, operands(subject.operation, build(case), mixture))


@pytest.mark.slow
@every_operation
@settings(max_examples=2000, derandomize=False)
@given(case=cases().map(square), mixture=mixtures)
def test_outputs_and_gradients_agree_with_the_oracle_in_a_large_sweep(
    subject: Subject, case: Case, mixture: Mixture
) -> None:
    case = dataclasses.replace(case, sigma=min(case.sigma, 3.0))
    check(subject, operands(subject.operation, build(case), mixture))


def stress(operation: str, causal: bool, **changes: Any) -> Any:
    case = Case(
        batch=2, key_heads=2, groups=2, queries=150, keys=150, dim=16, value_dim=8, dtype=torch.float32, sigma=1.0,
        mask="none", layout="heads inside", causal=causal, packed=False, biased=False, seed=3,
    )  # fmt: skip
    return operands(operation, build(dataclasses.replace(case, **changes)), Mixture())


@every_operation
@pytest.mark.parametrize("what", ["k", "v"])
@pytest.mark.parametrize("position", [1, 15, 16, 40, 149])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_nothing_in_the_future_reaches_an_earlier_row(subject: Subject, what: str, position: int, value: float) -> None:
    x = stress(subject.operation, causal=True)
    changed = getattr(x, what).clone()
    changed[:, :, position] = value
    before, after = compute(subject, x).out, compute(subject, x._replace(**{what: changed})).out
    assert torch.equal(before[:, :, :position], after[:, :, :position])
    if value != value:
        assert not torch.isfinite(after[:, :, position]).all()


@every_operation
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("mask", ["left", "right", "holes", "some samples empty"])
def test_what_is_masked_may_be_anything(subject: Subject, causal: bool, mask: str) -> None:
    x = stress(subject.operation, causal, mask=mask)
    counts = x.key_mask[:, None, :, None]
    garbage = {n: torch.where(counts, getattr(x, n), torch.nan).requires_grad_() for n in ("k", "v")}
    clean = {n: torch.where(counts, getattr(x, n), 0.0) for n in ("k", "v")}
    out = compute(subject, x._replace(**garbage)).out
    torch.testing.assert_close(out, compute(subject, x._replace(**clean)).out, atol=0, rtol=0)
    out.square().sum().backward()
    for t in garbage.values():
        assert t.grad is not None and torch.isfinite(t.grad).all() and (t.grad[~counts.expand_as(t.grad)] == 0).all()


@every_subject("diag")
def test_the_gradient_of_the_weight_is_kept_in_float32(subject: Subject) -> None:
    x = stress("diag", causal=False, dtype=torch.float16)
    v = (x.v * 3e4).clamp(-6e4, 6e4).to(torch.float16)
    weight = x.weight.detach().requires_grad_()
    compute(subject, x._replace(v=v, weight=weight)).out.float().sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32 and torch.isfinite(weight.grad).all()
