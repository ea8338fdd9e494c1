import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lln.instruments import (
    BlockDiagonalMatrix,
    DenseMatrix,
    LinearMatrix,
    LLNMatrix,
    MixtureMatrix,
    SoftmaxMatrix,
    bias,
    entropy,
    spectral_gap,
    top_singular_value,
)

from .helpers import gaussian, second_eigenvalue


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 80), st.integers(1, 24), st.floats(0.1, 2.0), st.integers(1, 2), st.integers(0, 2**31))
def test_the_small_matrix_has_the_gap_of_the_large_one(
    length: int, dim: int, sigma: float, heads: int, seed: int
) -> None:
    q, k = gaussian(length, dim, sigma, heads=heads, seed=seed)
    attention = LLNMatrix(q, k, 1.2, 0.8)
    found = spectral_gap(attention, "linear")
    torch.testing.assert_close(1 - found.gap, second_eigenvalue(attention.dense()), rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", ["dense", "arnoldi"])
def test_padding_does_not_change_the_gap(method: str) -> None:
    q, k = gaussian(60, 8, 1.5, heads=2)
    mask = (torch.arange(60) >= 5)[None] & (torch.arange(60) < 50)[None]
    cut = spectral_gap(SoftmaxMatrix(q[:, :, 5:50], k[:, :, 5:50]), "dense").gap
    torch.testing.assert_close(spectral_gap(SoftmaxMatrix(q, k, key_mask=mask), method).gap, cut, rtol=0, atol=1e-8)
    padded = LLNMatrix(q, k, 1.0, 1.0, key_mask=mask)
    short = LLNMatrix(q[:, :, 5:50], k[:, :, 5:50], 1.0, 1.0)
    torch.testing.assert_close(spectral_gap(padded, "linear").gap, spectral_gap(short, "dense").gap)
    torch.testing.assert_close(top_singular_value(padded), top_singular_value(DenseMatrix(short.dense())))


def test_a_complex_pair_is_found_and_given_above_the_axis() -> None:
    ring = 0.9 * torch.eye(9, dtype=torch.float64).roll(1, 1) + 0.1 / 9
    found = spectral_gap(ring[None, None])
    expected = 0.9 * torch.exp(torch.tensor(2j * torch.pi / 9))  # all of the ring's eigenvalues have modulus 0.9
    assert abs(found.lambda2.item()) == pytest.approx(0.9, abs=1e-12)
    assert found.lambda2.item().imag > 0
    assert expected.abs().item() == pytest.approx(1 - found.gap.item(), abs=1e-6)


@pytest.mark.parametrize("sigma", [0.7, 1.0, 1.5])
def test_arnoldi_finds_the_gap_of_softmax_and_its_estimate_covers_the_error(sigma: float) -> None:
    q, k = gaussian(320, 16, sigma, heads=2, dtype=torch.float32)
    attention = SoftmaxMatrix(q, k)
    found = spectral_gap(attention, "arnoldi", tolerance=1e-3)
    error = (1 - found.gap - second_eigenvalue(attention.dense())).abs()
    assert (error <= found.error).all() and found.error.max() < 1e-3


@pytest.mark.parametrize("padded", [False, True])
def test_products_of_arnoldi_never_form_the_matrix(padded: bool) -> None:
    """Only the flash path is allowed: it raises where SDPA would fall back to an N x N buffer."""
    q, k = gaussian(400, 16, 1.0, dtype=torch.float32)
    mask = (torch.arange(400) < 380)[None] if padded else None
    attention = SoftmaxMatrix(q.transpose(2, 3).contiguous().transpose(2, 3), k, key_mask=mask)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        assert 0.5 < spectral_gap(attention, "arnoldi", tolerance=1e-2).gap.item() < 1


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.7, 1.0, 1.4])
def test_arnoldi_is_within_1e_3_at_length_2048(sigma: float) -> None:
    q, k = gaussian(2048, 64, sigma, dtype=torch.float32)
    attention = SoftmaxMatrix(q, k)
    found = spectral_gap(attention, tolerance=1e-3)
    error = (1 - found.gap - second_eigenvalue(attention.dense())).abs()
    assert found.method == "arnoldi" and error.max() < 1e-3 and (error <= found.error).all()


def test_restarts_lose_nothing() -> None:
    q, k = gaussian(500, 8, 1.3)
    attention = SoftmaxMatrix(q, k)
    found = spectral_gap(attention, "arnoldi", tolerance=1e-8, max_products=60)
    assert found.products > 8  # the basis was compressed at least once
    assert abs(1 - found.gap - second_eigenvalue(attention.dense())) < 1e-8


def test_a_mixture_is_measured_by_products() -> None:
    q, k = gaussian(300, 16, 1.0)
    attention = MixtureMatrix(LLNMatrix(q, k, 1.5, 1.5), BlockDiagonalMatrix(q, k, 32))
    found = spectral_gap(attention, tolerance=1e-6, max_products=80)
    assert found.method == "arnoldi"
    assert abs(1 - found.gap - second_eigenvalue(attention.dense())) < 1e-6


@pytest.mark.parametrize("kind", ["softmax", "lln"])
def test_causal_attention_has_its_eigenvalues_on_the_diagonal(kind: str) -> None:
    q, k = gaussian(40, 8, 1.0, heads=2)
    options = {"is_causal": True}
    attention = SoftmaxMatrix(q, k, **options) if kind == "softmax" else LLNMatrix(q, k, 1.0, 1.0, **options)
    found = spectral_gap(attention)
    assert found.method == "causal"
    torch.testing.assert_close(1 - found.gap, second_eigenvalue(attention.dense()), rtol=0, atol=1e-9)
    mask = torch.ones(40, 40, dtype=torch.bool).tril()
    assert spectral_gap(SoftmaxMatrix(q, k, mask=mask)).method == "causal"


def test_uniform_attention_has_a_gap_of_one() -> None:
    zero = torch.zeros(1, 1, 300, 8)
    for attention in (SoftmaxMatrix(zero, zero), LLNMatrix(zero, zero, 1.0, 1.0)):
        assert spectral_gap(attention).gap.item() == pytest.approx(1.0, abs=1e-6)
    assert spectral_gap(torch.ones(1, 1, 1, 1)).gap.item() == 1


def test_identity_has_no_gap() -> None:
    assert spectral_gap(torch.eye(12)[None, None]).gap.item() == pytest.approx(0.0, abs=1e-6)


class TestTheorem33:
    """lambda_2^2 is the top principal variance for normal matrices; for softmax attention it is not."""

    def test_holds_for_a_symmetric_circulant_matrix(self) -> None:
        weights = torch.tensor([0.5, 0.2, 0.05, 0.0, 0.0, 0.05, 0.2], dtype=torch.float64)
        matrix = torch.stack([weights.roll(i) for i in range(7)])[None, None]
        torch.testing.assert_close(top_singular_value(matrix), 1 - spectral_gap(matrix, "dense").gap)

    def test_is_refuted_by_softmax_of_gaussian_inputs(self) -> None:
        q, k = gaussian(256, 64, 1.0)
        attention = SoftmaxMatrix(q, k)
        ratio = top_singular_value(attention) / (1 - spectral_gap(attention, "dense").gap)
        assert 2.0 < ratio.item() < 5.0


def test_bias_lowers_entropy_but_not_the_gap() -> None:
    """Section 3.2.2: a column everybody favours concentrates the rows, yet the chain forgets at once."""
    matrix = torch.full((1, 1, 64, 64), 0.1 / 63, dtype=torch.float64)
    matrix[..., 5] = 0.9
    assert entropy(matrix).item() < 1.1 and spectral_gap(matrix).gap.item() > 0.999
    assert bias(matrix).share.item() > 0.999


def test_singular_value_by_products_and_by_factors_is_the_dense_one() -> None:
    q, k = gaussian(260, 8, 1.2)
    for attention in (SoftmaxMatrix(q, k), LLNMatrix(q, k, 1.0, 1.0)):
        centred = attention.dense() - attention.dense().mean(2, keepdim=True)
        torch.testing.assert_close(
            top_singular_value(attention), torch.linalg.matrix_norm(centred, 2), rtol=1e-5, atol=0
        )


def test_a_cross_attention_has_no_gap() -> None:
    with pytest.raises(ValueError, match="square"):
        spectral_gap(SoftmaxMatrix(torch.randn(1, 1, 4, 2), torch.randn(1, 1, 5, 2)))


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(ValueError, match="'magic'"):
        spectral_gap(torch.eye(3)[None, None], "magic")  # type: ignore[arg-type]


def test_a_linear_method_needs_a_linear_attention() -> None:
    q, k = gaussian(5, 2)
    with pytest.raises(ValueError, match="needs a linear attention"):
        spectral_gap(SoftmaxMatrix(q, k), "linear")
    phi = torch.rand(1, 1, 5, 2)
    assert spectral_gap(LinearMatrix(phi, phi)).method == "linear"
