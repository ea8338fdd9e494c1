import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from lln.instruments import (
    DenseMatrix,
    LLNMatrix,
    SoftmaxMatrix,
    bias,
    collision_entropy,
    entropy,
    sampled_entropy,
    variance,
)

from .helpers import gaussian


def test_entropy_of_known_matrices() -> None:
    assert entropy(torch.full((1, 1, 8, 8), 1 / 8, dtype=torch.float64)).item() == 3.0
    assert entropy(torch.eye(8, dtype=torch.float64)[None, None]).item() == 0.0


def test_rows_of_padding_do_not_count() -> None:
    q, k = gaussian(30, 8, 1.5, heads=2)
    mask = torch.arange(30)[None] < 21
    padded = SoftmaxMatrix(q, k, key_mask=mask)
    cut = SoftmaxMatrix(q[:, :, :21], k[:, :, :21])
    torch.testing.assert_close(entropy(padded), entropy(cut))
    torch.testing.assert_close(collision_entropy(padded), collision_entropy(cut))
    torch.testing.assert_close(variance(padded), variance(cut))
    torch.testing.assert_close(bias(padded).biased, bias(cut).biased)


def test_sampled_entropy_is_within_its_error() -> None:
    q, k = gaussian(600, 16, 1.5, heads=8)
    attention = SoftmaxMatrix(q, k)
    estimate = sampled_entropy(attention, 100, torch.Generator().manual_seed(0))
    off = (estimate.value - entropy(attention)).abs() / estimate.standard_error
    assert off.max() < 4 and off.mean() > 0.2  # neither too small an error nor a padded one


def test_collision_entropy_of_a_linear_attention_needs_no_matrix() -> None:
    q, k = gaussian(50, 8, 1.2, batch=2, heads=2)
    attention = LLNMatrix(q, k, 1.0, 1.3)
    dense = DenseMatrix(attention.dense())
    torch.testing.assert_close(collision_entropy(attention), collision_entropy(dense))
    torch.testing.assert_close(variance(attention), variance(dense))
    assert (collision_entropy(attention) < entropy(attention)).all()


@given(st.integers(2, 24), st.floats(0.05, 20.0), st.floats(1.05, 3.0), st.integers(0, 2**31))
def test_theorem_3_2_and_3_4_entropy_rises_and_variance_falls_with_temperature(
    length: int, tau: float, step: float, seed: int
) -> None:
    scores = torch.randn(1, 1, length, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    cold, warm = (torch.softmax(scores / t, -1) for t in (tau, tau * step))
    assert entropy(warm) >= entropy(cold) - 1e-12
    assert variance(warm) <= variance(cold) + 1e-12


def test_temperature_moves_entropy_by_the_derivative_of_a_4_1_with_its_missing_ln_2() -> None:
    x = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    tau = 0.7
    p = torch.softmax(x / tau, -1)
    expected = (p * (x - (p * x).sum()).square()).sum() / tau**3 / math.log(2)
    step = 1e-5
    high, low = (entropy(torch.softmax(x / t, -1).expand(1, 1, 40, 40)) for t in (tau + step, tau - step))
    torch.testing.assert_close(((high - low) / (2 * step)).squeeze(), expected, rtol=1e-7, atol=0)


class TestBias:
    def test_concentration_splits_into_biased_and_unbiased_bits(self) -> None:
        q, k = gaussian(64, 8, 1.5, heads=3)
        attention = SoftmaxMatrix(q, k)
        found = bias(attention)
        torch.testing.assert_close(found.biased + found.unbiased, math.log2(64) - entropy(attention))

    def test_everybody_looking_at_one_key_is_all_bias(self) -> None:
        matrix = torch.zeros(1, 1, 16, 16, dtype=torch.float64)
        matrix[..., 3] = 1
        found = bias(matrix)
        assert found.biased.item() == 4 and found.unbiased.item() == 0 and found.share.item() == 1

    def test_everybody_looking_at_a_key_of_their_own_is_no_bias(self) -> None:
        found = bias(torch.eye(16, dtype=torch.float64)[None, None])
        assert found.biased.item() == 0 and found.unbiased.item() == 4 and found.share.item() == 0
