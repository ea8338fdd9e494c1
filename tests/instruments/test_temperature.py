import pytest
import torch

from lln.instruments import lln_temperature, score_variance, temperature

from .helpers import gaussian


def test_without_cross_covariance_it_is_one_over_the_product_of_sigmas() -> None:
    q, k = gaussian(200, 16, 1.7, batch=2, heads=3)
    expected = 1 / (q.std((2, 3), correction=0) * k.std((2, 3), correction=0))
    torch.testing.assert_close(temperature(q, k, cross="none"), expected)


def test_goodmans_form_is_the_variance_of_the_products_of_components() -> None:
    q, k = gaussian(60, 4, 1.0)
    q, k = q * torch.tensor([2.0, 1.0, 0.5, 0.1]) + 0.3, k * torch.tensor([3.0, 1.0, 0.2, 0.1]) - 0.2
    products = q[:, :, :, None] * k[:, :, None]
    torch.testing.assert_close(score_variance(q, k), products.var(correction=0)[None, None])
    # For centred inputs it is the paper's sigma_q^2 sigma_k^2 + Cov(q^2, k^2) - Cov(q, k)^2.
    q, k = q - q.mean(2, keepdim=True), k - k.mean(2, keepdim=True)
    a, b = q.square().mean(2), k.square().mean(2)
    expected = a.mean() * b.mean() + ((a - a.mean()) * (b - b.mean())).mean()
    torch.testing.assert_close(score_variance(q, k).squeeze(), expected)


def test_the_full_form_is_the_variance_of_the_scores_inside_rows() -> None:
    q, k = gaussian(50, 6, 1.0, heads=2)
    mixing = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    q, k = q @ mixing + 1.0, k @ mixing + 0.5
    scores = q @ k.mT / 6**0.5
    torch.testing.assert_close(score_variance(q, k, cross="full"), scores.var(-1, correction=0).mean(-1))


def test_padding_does_not_count() -> None:
    q, k = gaussian(30, 4, 1.0)
    mask = torch.arange(30)[None] < 20
    for cross in ("none", "goodman", "full"):
        padded = temperature(q, k, cross=cross, key_mask=mask)
        torch.testing.assert_close(padded, temperature(q[:, :, :20], k[:, :, :20], cross=cross))


def test_lln_temperature_is_eq_11() -> None:
    q, k = gaussian(400, 32, 1.0)
    spread = 4 * q.var(correction=0) + 9 * k.var(correction=0)
    torch.testing.assert_close(lln_temperature(q, k, 2.0, 3.0, a=0.2, b=-0.1).squeeze(), (0.2 * spread - 0.1).rsqrt())


def test_below_the_authors_line_the_lln_temperature_is_infinite() -> None:
    q, k = gaussian(40, 8, 0.1)
    assert lln_temperature(q, k, 1.0, 1.0).isinf().all()


def test_constant_inputs_have_infinite_temperature() -> None:
    assert temperature(torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2)).isinf().all()


def test_an_unknown_cross_is_refused() -> None:
    with pytest.raises(ValueError, match="'none', 'goodman' or 'full'"):
        temperature(*gaussian(4, 2), cross="some")  # type: ignore[arg-type]
