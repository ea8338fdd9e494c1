"""The logarithm of a sum of log-normal numbers, within and beyond the range of its mean."""

import math

import pytest
import torch

from lln.ops.near_far.mass import excess


def log_sums(count: int, x: float, draws: int = 400) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    exponents = x**0.5 * torch.randn(draws, count, generator=generator, dtype=torch.float64)
    return exponents.logsumexp(dim=1)


def estimate(count: int, x: float) -> float:
    log_count = torch.tensor(math.log(count), dtype=torch.float64)
    return float(log_count + excess(torch.tensor(x, dtype=torch.float64), log_count)[0])


@pytest.mark.parametrize("count", [64, 448, 4096])
@pytest.mark.parametrize("x", [0.0, 0.25, 1.0, 2.0])
def test_within_its_range_the_estimate_is_the_mean_log_sum(count: int, x: float) -> None:
    assert abs(estimate(count, x) - float(log_sums(count, x).mean())) < 0.1


@pytest.mark.parametrize("count", [64, 448, 4096])
@pytest.mark.parametrize("x", [16.0, 36.0, 100.0, 1000.0])
def test_beyond_its_range_it_is_nearer_than_the_log_normal_mean_and_never_below_the_truth(count: int, x: float) -> None:
    true, bounded, unbounded = float(log_sums(count, x).mean()), estimate(count, x), math.log(count) + x / 2
    if x > 2 * math.log(count):
        assert true < bounded < unbounded
        assert bounded - true < 0.25 * math.sqrt(2 * x * math.log(count))
    else:
        assert bounded == pytest.approx(unbounded)


def test_the_example_of_448_keys() -> None:
    assert estimate(448, 36.0) == pytest.approx(20.97, abs=0.01)


def test_the_estimate_and_its_derivative_are_continuous_and_the_second_result_is_twice_the_derivative() -> None:
    log_count = torch.tensor(math.log(100.0), dtype=torch.float64)
    edge = 2 * float(log_count)
    x = torch.tensor([0.0, 1.0, edge - 1e-9, edge + 1e-9, 50.0, 1e8], dtype=torch.float64, requires_grad=True)
    energy, fall = excess(x, log_count)
    (slope,) = torch.autograd.grad(energy.sum(), x)
    torch.testing.assert_close(2 * slope, fall.detach())
    assert abs(float((energy[2] - energy[3]).detach())) < 1e-8 and abs(float((fall[2] - fall[3]).detach())) < 1e-8


def test_one_key_has_no_excess_and_no_gradient_that_is_not_a_number() -> None:
    x = torch.zeros(3, requires_grad=True)
    log_count = torch.zeros(3, requires_grad=True)
    energy, fall = excess(x, log_count)
    assert torch.equal(energy, torch.zeros(3)) and torch.equal(fall, torch.ones(3))
    for gradient in torch.autograd.grad(energy.sum() + fall.sum(), (x, log_count), materialize_grads=True):
        assert torch.isfinite(gradient).all()
