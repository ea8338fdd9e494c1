"""The contract of near-far attention. Every backend passes these tests unchanged."""

import dataclasses
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lln.ops.near_far import Operands, near_far, oracle
from tests.ops.cases import Case, Inputs, build, cases
from tests.ops.subjects import Subject, compute, every_subject
from tests.ops.tolerance import GRADIENT_FACTOR, OUTPUT_FACTOR, assert_as_good

every_backend = every_subject("near_far")


@dataclasses.dataclass(frozen=True)
class Reach:
    """What is near, and how scores are scaled."""

    block_size: int = 16
    neighbours: int = 0
    first_tokens: int = 0
    scale: float = 0.3


def square(case: Case) -> Case:
    return dataclasses.replace(case, keys=case.queries)


reaches = st.builds(
    Reach,
    st.sampled_from((1, 3, 16, 64, 200)),
    st.sampled_from((0, 0, 1, 2)),
    st.sampled_from((0, 0, 1, 4, 30)),
    st.sampled_from((0.3, 0.3, 1.0, 0.0, -0.5)),
)


def operands(inputs: Inputs, reach: Reach) -> Operands:
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(inputs.q.shape[0], inputs.q.shape[1], 4, generator=generator, dtype=torch.float64)
    return Operands(
        inputs.q, inputs.k, inputs.v, inputs.alpha, inputs.beta, inputs.bias, weights.to(inputs.alpha.dtype),
        inputs.key_mask, inputs.cu_seqlens, reach.block_size, reach.neighbours, reach.first_tokens, reach.scale,
        inputs.causal,
    )  # fmt: skip


def widened(x: Operands) -> Operands:
    return Operands(*(t.double() if isinstance(t, Tensor) and t.is_floating_point() else t for t in x))


def check(subject: Subject, x: Operands) -> None:
    check_by(lambda y: compute(subject, y).out, x)


def check_by(compute_it: Any, x: Operands) -> None:
    """Whatever computes it: outputs and gradients by the rule of the contract."""
    names = [n for n in near_far.differentiable if getattr(x, n) is not None]
    upstream = torch.randn(*x.q.shape[:3], x.v.shape[3], dtype=torch.float64)

    def results(compute_out: Any, y: Operands) -> list[Tensor]:
        leaves = {n: getattr(y, n).detach().requires_grad_() for n in names}
        out = compute_out(y._replace(**leaves))
        gradients = torch.autograd.grad(out, list(leaves.values()), upstream.to(out.dtype), materialize_grads=True)
        return [out.detach(), *gradients]

    actual = results(compute_it, x)
    true = results(lambda y: near_far(y, "oracle").out, widened(x))
    one_way = results(lambda y: oracle.literally(y, x.alpha.dtype).to(x.q.dtype), x)
    other_way = results(lambda y: oracle.literally(features_reversed(y), x.alpha.dtype).to(x.q.dtype), x)
    unit, rounding = torch.finfo(x.q.dtype).eps, torch.finfo(x.alpha.dtype).eps * largest_exponent(x)
    terms = ordinary_terms(x, upstream)
    factors = (OUTPUT_FACTOR, *[GRADIENT_FACTOR] * len(names))
    found = zip(("output", *names), factors, actual, true, one_way, other_way, strict=True)
    for name, factor, a, t, p, r in found:
        assert torch.isfinite(a).all(), f"{name} is not finite"
        size = max(float(t.abs().max()), terms[name])
        assert_as_good(a, [p, r], t, factor, size, unit, rounding, name)


def ordinary_terms(x: Operands, upstream: Tensor) -> dict[str, float]:
    """How large the terms of each result are by root mean square: a result that cancels is known to their last places."""
    q, k, v, w, up, alpha, beta = (
        float(t.detach().double().square().mean().sqrt()) for t in (x.q, x.k, x.v, x.weights, upstream, x.alpha, x.beta)
    )
    of_row = (1 + w) * v * up * x.v.shape[3] ** 0.5
    of_all = of_row * x.q.shape[2] ** 0.5
    return {
        "output": (1 + w) * v, "q": of_row * (abs(x.scale) * k + alpha), "k": of_row * (abs(x.scale) * q + beta),
        "v": (1 + w) * up, "alpha": of_all * q, "beta": of_all * k, "bias": of_all, "weights": of_all,
    }  # fmt: skip


def features_reversed(x: Operands) -> Operands:
    """The same attention with its sums in another order: a second plain way to write the formula, neither being the better."""
    return x._replace(
        **{n: getattr(x, n).flip(-1) for n in ("q", "k", "alpha", "beta", "bias") if getattr(x, n) is not None}
    )


def largest_exponent(x: Operands) -> float:
    """An exponent of 300 is known to 300 units in its last place, and so is the weight it makes."""
    q, k = (float(t.detach().abs().max()) for t in (x.q, x.k))
    alpha, beta = (float(t.detach().abs().max()) for t in (x.alpha, x.beta))
    bias = 0.0 if x.bias is None else float(x.bias.detach().abs().max())
    return max(abs(x.scale) * q * k * x.q.shape[3] ** 0.5, alpha * q + beta * k + bias)


@every_backend
@settings(max_examples=60)
@given(case=cases().map(square), reach=reaches)
def test_outputs_and_gradients_agree_with_the_oracle(subject: Subject, case: Case, reach: Reach) -> None:
    check(subject, operands(build(case), reach))


@pytest.mark.slow
@every_backend
@settings(max_examples=1500, derandomize=False)
@given(case=cases().map(square), reach=reaches)
def test_outputs_and_gradients_agree_with_the_oracle_in_a_large_sweep(
    subject: Subject, case: Case, reach: Reach
) -> None:
    check(subject, operands(build(case), reach))


def stress(causal: bool, reach: Reach | None = None, **changes: Any) -> Operands:
    case = Case(
        batch=2, key_heads=2, groups=2, queries=150, keys=150, dim=16, value_dim=8, dtype=torch.float32, sigma=1.0,
        mask="none", layout="heads inside", causal=causal, packed=False, biased=True, seed=3,
    )  # fmt: skip
    return operands(build(dataclasses.replace(case, **changes)), reach or Reach())


@every_backend
@pytest.mark.parametrize("sigma", [1e-3, 0.1, 1.0, 4.0, 16.0, 64.0])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_every_scale_of_the_contract_is_bounded_by_the_values(subject: Subject, sigma: float, causal: bool) -> None:
    x = stress(causal, Reach(neighbours=1, first_tokens=4, scale=16**-0.5), sigma=sigma)
    leaves = {n: getattr(x, n).detach().requires_grad_() for n in near_far.differentiable}
    out = compute(subject, x._replace(**leaves)).out
    deviation = math.sqrt(2 * 16 * math.log(150)) * float(x.v.std(dim=2, correction=0).max())
    largest = float(x.v.abs().max())
    of_near, of_lln, of_mean, of_slope = x.weights.abs().amax(dim=(0, 1)).tolist()
    assert float(out.detach().abs().max()) <= (1 + of_near + of_lln + of_mean) * largest + of_slope * deviation * 1.5
    for name, gradient in zip(leaves, torch.autograd.grad(out.square().sum(), list(leaves.values())), strict=True):
        assert torch.isfinite(gradient).all(), name


@every_backend
@pytest.mark.parametrize("shift", [10.0, 1000.0])
def test_a_large_mean_of_keys_and_values_costs_no_digit_of_their_covariance(subject: Subject, shift: float) -> None:
    """Shifted values shift the output, where the weights of near, LLN and mean add up to 1; shifted keys change nothing."""
    x = stress(False)
    weights = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand_as(x.weights)
    x = widened(x)._replace(weights=weights.double())
    moved = x._replace(k=x.k + shift, v=x.v + shift)
    single = moved._replace(**{n: getattr(moved, n).float() for n in near_far.differentiable})
    found, expected = compute(subject, single).out.double() - shift, near_far(x, "oracle").out
    # The inputs themselves are rounded to 2^-24 of the shift; what they make of it must not be much more.
    assert float((found - expected).abs().max()) <= 64 * torch.finfo(torch.float32).eps * shift


@every_backend
@pytest.mark.parametrize("reach", [Reach(), Reach(neighbours=2, first_tokens=20)], ids=["block", "wide"])
@pytest.mark.parametrize("what", ["k", "v"])
@pytest.mark.parametrize("position", [1, 15, 16, 40, 149])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_nothing_in_the_future_reaches_an_earlier_row(
    subject: Subject, reach: Reach, what: str, position: int, value: float
) -> None:
    x = stress(True, reach)
    changed = getattr(x, what).clone()
    changed[:, :, position] = value
    before, after = compute(subject, x).out, compute(subject, x._replace(**{what: changed})).out
    assert torch.equal(before[:, :, :position], after[:, :, :position])
    if value != value:
        assert not torch.isfinite(after[:, :, position:]).any(dim=-1).any()


@every_backend
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("mask", ["left", "right", "holes", "some samples empty"])
def test_what_is_masked_may_be_anything(subject: Subject, causal: bool, mask: str) -> None:
    x = stress(causal, Reach(neighbours=1, first_tokens=4), mask=mask)
    counts = x.key_mask[:, None, :, None]
    garbage = {n: torch.where(counts, getattr(x, n), torch.nan).requires_grad_() for n in ("k", "v")}
    clean = {n: torch.where(counts, getattr(x, n), 0.0) for n in ("k", "v")}
    out = compute(subject, x._replace(**garbage)).out
    assert torch.equal(out, compute(subject, x._replace(**clean)).out)
    out.square().sum().backward()
    for t in garbage.values():
        assert t.grad is not None and torch.isfinite(t.grad).all() and (t.grad[~counts.expand_as(t.grad)] == 0).all()


@every_backend
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_padding_and_batch_mates_have_no_influence(subject: Subject, causal: bool) -> None:
    x = stress(causal, Reach(neighbours=1, first_tokens=4))
    alone = compute(subject, x._replace(**{n: t[:1] for n, t in x._asdict().items() if isinstance(t, Tensor)})).out
    assert torch.equal(compute(subject, x).out[:1], alone)
    mask = torch.zeros(2, 200, dtype=torch.bool)
    mask[0, 37:187], mask[1, :150] = True, True
    padded = {}
    for name in ("q", "k", "v"):
        t = getattr(x, name)
        padded[name] = torch.full((2, t.shape[1], 200, t.shape[3]), 5.0)
        padded[name][0, :, 37:187], padded[name][1, :, :150] = t[0], t[1]
    out, expected = compute(subject, x._replace(**padded, key_mask=mask)).out, compute(subject, x).out
    torch.testing.assert_close(out[0, :, 37:187], expected[0], atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(out[1, :, :150], expected[1], atol=2e-6, rtol=1e-6)


@every_backend
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("reach", [Reach(), Reach(neighbours=2, first_tokens=20)], ids=["block", "wide"])
def test_packed_sequences_are_what_they_are_by_themselves(subject: Subject, causal: bool, reach: Reach) -> None:
    edges = [0, 10, 10, 91, 150]
    x = stress(causal, reach, batch=1)
    x = x._replace(**{n: getattr(x, n).expand(4, -1, -1) for n in ("alpha", "beta", "bias")})
    packed = compute(subject, x._replace(cu_seqlens=torch.tensor(edges))).out
    for i, (start, stop) in enumerate(pairwise(edges)):
        if start == stop:
            continue
        rows = {n: getattr(x, n)[:, :, start:stop] for n in ("q", "k", "v")}
        one = x._replace(**rows, **{n: getattr(x, n)[i : i + 1] for n in ("alpha", "beta", "bias")})
        torch.testing.assert_close(packed[:, :, start:stop], compute(subject, one).out, atol=2e-6, rtol=1e-6)


@every_backend
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_where_nothing_is_far_it_is_softmax_whatever_the_weights(subject: Subject, causal: bool) -> None:
    x = stress(causal, Reach(block_size=64, neighbours=2))
    some, others = compute(subject, x).out, compute(subject, x._replace(weights=torch.full_like(x.weights, 1e6))).out
    assert torch.equal(some, others)
    expected = torch.nn.functional.scaled_dot_product_attention(
        x.q, x.k, x.v, is_causal=causal, scale=x.scale, enable_gqa=True
    )
    torch.testing.assert_close(some, expected, atol=2e-6, rtol=1e-6)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_parameters_are_kept_in_float32(subject: Subject, dtype: torch.dtype) -> None:
    x = stress(False, dtype=dtype)
    leaves = {n: getattr(x, n).detach().requires_grad_() for n in ("alpha", "beta", "bias", "weights")}
    compute(subject, x._replace(**leaves)).out.float().sum().backward()
    for t in leaves.values():
        assert t.grad is not None and t.grad.dtype == torch.float32 and torch.isfinite(t.grad).all()
