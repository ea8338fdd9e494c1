"""The contract of LLN attention. Every backend passes these tests unchanged."""

import dataclasses
import os
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tests.ops.cases import Case, Inputs, build, cases
from tests.ops.subjects import Subject, compute, every_subject
from tests.ops.tolerance import (
    GRADIENT_FACTOR,
    OUTPUT_FACTOR,
    assert_as_good,
    oracle_rounding,
    plain,
    term_sizes,
    truth,
)

every_backend = every_subject("attention")
EXAMPLES = int(os.environ.get("LLN_CONTRACT_EXAMPLES", 300))
either_direction = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def run(subject: Subject, inputs: Inputs) -> Tensor:
    return compute(subject, inputs.operands).out


def with_grad(inputs: Inputs) -> Inputs:
    names = [f.name for f in dataclasses.fields(Inputs)]
    return Inputs(**{
        name: x.detach().clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in ((name, getattr(inputs, name)) for name in names)
    })  # fmt: skip


def check_case(subject: Subject, case: Case) -> None:
    inputs = build(case)
    check_inputs(subject, inputs)


def check_inputs(subject: Subject, inputs: Inputs) -> None:
    check_inputs_by(lambda x: run(subject, x), inputs)


def check_inputs_by(actual: Callable[[Inputs], Tensor], inputs: Inputs) -> None:
    results = {
        "true": truth,
        "plain": plain,
        "plain, fused": lambda x: plain(x, fused=True),
        "actual": actual,
    }
    plainly = ("plain", "plain, fused")
    outputs, gradients = {}, {}
    upstream: Tensor | None = None
    for name, function in results.items():
        # Gradients are taken at the strides under test, so the inputs themselves are the leaves.
        leaves = tuple(x.detach().requires_grad_() for x in inputs.differentiable)
        bias = leaves[5] if inputs.bias is not None else None
        own = dataclasses.replace(
            inputs, q=leaves[0], k=leaves[1], v=leaves[2], alpha=leaves[3], beta=leaves[4], bias=bias
        )
        out = function(own)
        if upstream is None:
            upstream = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        outputs[name] = out.detach()
        gradients[name] = torch.autograd.grad(out, leaves, upstream.to(out.dtype))
    assert upstream is not None
    sizes, unit, rounding = term_sizes(inputs, upstream), torch.finfo(inputs.q.dtype).eps, oracle_rounding(inputs)
    assert_as_good(
        outputs["actual"], [outputs[x] for x in plainly], outputs["true"],
        OUTPUT_FACTOR, sizes["output"], unit, rounding, "output",
    )  # fmt: skip
    for i, what in enumerate(("q", "k", "v", "alpha", "beta", "bias")[: len(inputs.differentiable)]):
        found, true = gradients["actual"][i], gradients["true"][i]
        assert torch.isfinite(found).all(), f"gradient of {what} is not finite"
        assert_as_good(
            found, [gradients[x][i] for x in plainly], true,
            GRADIENT_FACTOR, sizes[what], unit, rounding, f"gradient of {what}",
        )  # fmt: skip


@every_backend
@settings(max_examples=EXAMPLES)
@given(case=cases())
def test_outputs_and_gradients_agree_with_the_oracle(subject: Subject, case: Case) -> None:
    check_case(subject, case)


@pytest.mark.slow
@every_backend
@settings(max_examples=2000, derandomize=False)
@given(case=cases())
def test_outputs_and_gradients_agree_with_the_oracle_in_a_large_sweep(subject: Subject, case: Case) -> None:
    check_case(subject, case)


def stress_case(causal: bool, sigma: float = 1.0, **changes: object) -> Case:
    case = Case(
        batch=2, key_heads=2, groups=1, queries=200, keys=200, dim=32, value_dim=32, dtype=torch.float32, sigma=sigma,
        mask="none", layout="heads inside", causal=causal, packed=False, biased=False, seed=3,
    )  # fmt: skip
    return dataclasses.replace(case, **changes)


def spiked(inputs: Inputs, kind: str) -> Inputs:
    q, k = inputs.q.clone(), inputs.k.clone()
    if kind == "a feature of k":
        k[..., 5] += 30
    elif kind == "a feature of q and another of k":
        q[..., 5] += 30
        k[..., 9] += 30
    elif kind == "a token of k":
        k[:, :, 77] += 30
    elif kind == "a token of q":
        q[:, :, 77] += 30
    elif kind == "linearly growing keys":
        k += torch.arange(k.shape[2], dtype=k.dtype)[:, None]
    elif kind == "linearly falling keys":
        k -= torch.arange(k.shape[2], dtype=k.dtype)[:, None]
    return dataclasses.replace(inputs, q=q, k=k)


SPIKES = (
    "a feature of k", "a feature of q and another of k", "a token of k", "a token of q",
    "linearly growing keys", "linearly falling keys",
)  # fmt: skip


@every_backend
@either_direction
@pytest.mark.parametrize("sigma", [1e-3, 0.1, 1.0, 4.0, 16.0, 64.0])
def test_every_input_scale_is_finite_and_correct(subject: Subject, causal: bool, sigma: float) -> None:
    check_inputs(subject, build(stress_case(causal, sigma)))


@every_backend
@either_direction
@pytest.mark.parametrize("kind", SPIKES)
def test_outliers_are_finite_and_correct(subject: Subject, causal: bool, kind: str) -> None:
    check_inputs(subject, spiked(build(stress_case(causal)), kind))


@every_backend
@either_direction
@pytest.mark.parametrize("sigma", [1e-3, 1.0, 16.0, 64.0])
def test_rows_of_weights_sum_to_one(subject: Subject, causal: bool, sigma: float) -> None:
    inputs = build(stress_case(causal, sigma))
    out = run(subject, dataclasses.replace(inputs, v=torch.ones_like(inputs.v)))
    torch.testing.assert_close(out, torch.ones_like(out), atol=1e-5, rtol=0)


@every_backend
@either_direction
def test_values_at_the_edge_of_float16_stay_finite(subject: Subject, causal: bool) -> None:
    inputs = build(stress_case(causal, dtype=torch.float16))
    largest = torch.finfo(torch.float16).max
    v = torch.where(inputs.v > 0, largest, -largest).to(torch.float16)
    inputs = dataclasses.replace(inputs, v=v)
    out, true = run(subject, inputs), truth(inputs)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out.double(), true, atol=largest * 2**-10, rtol=0)


@every_backend
@pytest.mark.parametrize("position", [1, 63, 64, 100, 199])
def test_a_huge_later_key_changes_no_bit_of_an_earlier_row(subject: Subject, position: int) -> None:
    inputs = build(stress_case(causal=True, mask="holes"))
    k = inputs.k.clone()
    k[:, :, position] *= 1e4
    before, after = run(subject, inputs), run(subject, dataclasses.replace(inputs, k=k))
    assert torch.equal(before[:, :, :position], after[:, :, :position])


@every_backend
@either_direction
@pytest.mark.parametrize("length, padded", [(1, 70), (37, 64), (100, 101), (130, 300)])
def test_right_padding_changes_no_bit(subject: Subject, causal: bool, length: int, padded: int) -> None:
    inputs = build(stress_case(causal, queries=padded, keys=padded, biased=True))
    mask = (torch.arange(padded) < length).expand(2, -1)
    short = [x[:, :, :length] for x in (inputs.q, inputs.k, inputs.v)]
    with_padding = run(subject, dataclasses.replace(inputs, key_mask=mask))
    without = run(subject, dataclasses.replace(inputs, q=short[0], k=short[1], v=short[2]))
    assert torch.equal(with_padding[:, :, :length], without)


@every_backend
@either_direction
@pytest.mark.parametrize("kind", ["left", "right", "holes"])
def test_padding_keys_do_not_count(subject: Subject, causal: bool, kind: str) -> None:
    inputs = build(stress_case(causal, mask=kind))
    assert inputs.key_mask is not None
    garbage = [torch.where(inputs.key_mask[:, None, :, None], x, torch.nan) for x in (inputs.k, inputs.v)]
    padded = run(subject, dataclasses.replace(inputs, k=garbage[0], v=garbage[1]))
    for sample, counts in enumerate(inputs.key_mask):
        one = slice(sample, sample + 1)
        kept = [x[one][:, :, counts] for x in (inputs.q, inputs.k, inputs.v)]
        alone = run(subject, Inputs(*kept, inputs.alpha[one], inputs.beta[one], None, None, None, causal))
        assert_close_to_rounding(padded[one][:, :, counts], alone, inputs.v)


@every_backend
@either_direction
def test_packed_sequences_equal_a_loop(subject: Subject, causal: bool) -> None:
    inputs = build(stress_case(causal, batch=1, packed=True, biased=True))
    assert inputs.cu_seqlens is not None and inputs.bias is not None
    packed, edges = run(subject, inputs), inputs.cu_seqlens.tolist()
    for i, (start, stop) in enumerate(pairwise(edges)):
        part = [x[:, :, start:stop] for x in (inputs.q, inputs.k, inputs.v)]
        scales = [x[i : i + 1] for x in (inputs.alpha, inputs.beta, inputs.bias)]
        alone = run(subject, Inputs(*part, *scales, None, None, causal))
        assert_close_to_rounding(packed[:, :, start:stop], alone, inputs.v)


@every_backend
@either_direction
def test_batch_mates_have_no_influence(subject: Subject, causal: bool) -> None:
    inputs = build(stress_case(causal, batch=3))
    together = run(subject, inputs)
    for sample in range(3):
        one = slice(sample, sample + 1)
        alone = run(subject, Inputs(
            inputs.q[one], inputs.k[one], inputs.v[one], inputs.alpha[one], inputs.beta[one], None, None, None, causal
        ))  # fmt: skip
        assert_close_to_rounding(together[one], alone, inputs.v)


@every_backend
@either_direction
def test_a_row_without_keys_gives_zeros_and_no_gradient(subject: Subject, causal: bool) -> None:
    inputs = with_grad(build(stress_case(causal)))
    mask = torch.ones(2, 200, dtype=torch.bool)
    mask[0] = False
    out = run(subject, dataclasses.replace(inputs, key_mask=mask))
    assert (out[0] == 0).all()
    out.sum().backward()
    for x in (inputs.q, inputs.k, inputs.v):
        assert x.grad is not None and (x.grad[0] == 0).all() and torch.isfinite(x.grad).all()


@every_backend
@either_direction
def test_masked_keys_get_no_gradient_whatever_they_hold(subject: Subject, causal: bool) -> None:
    inputs = build(stress_case(causal, mask="holes"))
    assert inputs.key_mask is not None
    counts = inputs.key_mask[:, None, :, None]
    k, v = (torch.where(counts, x, torch.nan).requires_grad_() for x in (inputs.k, inputs.v))
    run(subject, dataclasses.replace(inputs, k=k, v=v)).square().sum().backward()
    for x in (k, v):
        assert x.grad is not None and torch.isfinite(x.grad).all() and (x.grad[~counts.expand_as(x.grad)] == 0).all()


def assert_close_to_rounding(actual: Tensor, expected: Tensor, values: Tensor) -> None:
    allowed = 4 * torch.finfo(actual.dtype).eps * float(values.abs().max())
    torch.testing.assert_close(actual, expected, atol=allowed, rtol=0)
