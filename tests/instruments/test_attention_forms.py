"""Every form of attention agrees with its own dense matrix: rows, products, transposed products."""

import pytest
import torch

from lln.instruments import (
    AttentionMatrix,
    BlockDiagonalMatrix,
    DenseMatrix,
    FunctionMatrix,
    LinearMatrix,
    LLNMatrix,
    MixtureMatrix,
    SoftmaxMatrix,
)
from lln.ops.lln import Operands, oracle

from .helpers import gaussian

MASK = torch.tensor([[True] * 20, [False] * 3 + [True] * 14 + [False] * 3])


def forms(mask: torch.Tensor | None, causal: bool) -> dict[str, AttentionMatrix]:
    q, k = gaussian(20, 6, 1.3, batch=2, heads=3)
    options = {"key_mask": mask, "is_causal": causal}
    lln = LLNMatrix(q, k, 1.1, torch.tensor(0.9), **options)
    blocks = BlockDiagonalMatrix(q, k, 7, **options)
    return {
        "softmax": SoftmaxMatrix(q, k, **options),
        "linear": LinearMatrix(torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1, **options),
        "lln": lln,
        "blocks": blocks,
        "mixture": MixtureMatrix(lln, blocks, torch.tensor([0.2, 0.5, 0.9])),
        "mixture by row": MixtureMatrix(lln, blocks, torch.linspace(0, 1, 20)[None, None]),
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, MASK], ids=["full", "padded"])
@pytest.mark.parametrize("name", ["softmax", "linear", "lln", "blocks", "mixture", "mixture by row"])
def test_products_and_rows_are_those_of_the_dense_matrix(name: str, mask: torch.Tensor | None, causal: bool) -> None:
    attention = forms(mask, causal)[name]
    counts = torch.ones(2, 20, dtype=torch.bool) if mask is None else mask
    rows = counts[:, None, :, None]
    matrix = attention.dense().double()
    assert (matrix.sum(-1)[counts[:, None].expand(2, 3, 20)] - 1).abs().max() < 1e-12
    assert (matrix * rows).masked_select(~counts[:, None, None].expand_as(matrix)).abs().sum() == 0
    if causal:
        assert (matrix * rows).triu(1).abs().max() == 0
    x = torch.randn(2, 3, 20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(attention.apply(x) * rows, (matrix @ x) * rows, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(attention.transpose(x * rows), matrix.mT @ (x * rows), rtol=1e-10, atol=1e-12)
    index = torch.tensor([4, 11])
    torch.testing.assert_close(
        attention.log_rows(index).exp() * rows[:, :, index], matrix[:, :, index] * rows[:, :, index]
    )


@pytest.mark.parametrize("causal", [False, True])
def test_lln_matrix_is_the_oracles(causal: bool) -> None:
    q, k = gaussian(20, 6, 2.0, batch=2, heads=4)
    k = k[:, :2]  # two key heads for four query heads
    alpha, beta, bias = torch.rand(2, 4, 6), torch.rand(2, 2, 6), torch.randn(2, 4, 6)
    expected = oracle.matrix(Operands(q, k, k, alpha, beta, bias, MASK, is_causal=causal))
    own = LLNMatrix(
        q,
        k,
        alpha[:, :, None],
        beta[:, :, None],
        feature_bias=bias[:, :, None],
        key_mask=MASK,
        is_causal=causal,
    ).dense()
    where = MASK[:, None, :, None]
    torch.testing.assert_close(own * where, expected * where, rtol=1e-10, atol=1e-13)


def test_logs_of_lln_entries_survive_underflow() -> None:
    q, k = gaussian(12, 2, 400.0)
    attention = LLNMatrix(q, k, 1.0, 1.0)
    scores = torch.logsumexp(q[..., :, None, :] + k[..., None, :, :], -1)
    assert (attention.dense() == 0).any()
    torch.testing.assert_close(
        attention.log_rows(torch.arange(12)), torch.log_softmax(scores, -1), rtol=1e-9, atol=1e-9
    )


def test_a_function_of_values_yields_its_rows() -> None:
    q, k = gaussian(20, 6, batch=2, heads=3)
    softmax = SoftmaxMatrix(q, k)
    function = FunctionMatrix(
        lambda v: torch.nn.functional.scaled_dot_product_attention(q, k, v), 2, 3, 20, 6, dtype=torch.float64
    )
    torch.testing.assert_close(function.dense(), softmax.dense())
    x = torch.randn(2, 3, 20, 9, dtype=torch.float64)
    torch.testing.assert_close(function.apply(x), softmax.apply(x))


class TestRefusals:
    def test_rows_that_do_not_sum_to_one(self) -> None:
        with pytest.raises(ValueError, match="sums to one"):
            DenseMatrix(torch.full((1, 1, 4, 4), 0.3))

    def test_negative_entries(self) -> None:
        matrix = torch.full((1, 1, 2, 2), 0.5)
        matrix[..., 0, :] = torch.tensor([1.5, -0.5])
        with pytest.raises(ValueError, match="negative"):
            DenseMatrix(matrix)

    def test_nan(self) -> None:
        with pytest.raises(ValueError, match="NaN"):
            DenseMatrix(torch.full((1, 1, 2, 2), torch.nan))
        with pytest.raises(ValueError, match="q holds NaN"):
            SoftmaxMatrix(torch.full((1, 1, 4, 2), torch.nan), torch.zeros(1, 1, 4, 2))

    def test_a_matrix_without_batch_and_heads(self) -> None:
        with pytest.raises(ValueError, match=r"P\[None, None\]"):
            DenseMatrix(torch.eye(3))

    def test_a_function_that_is_no_average(self) -> None:
        with pytest.raises(ValueError, match="sum to one"):
            FunctionMatrix(lambda v: 2 * v, 1, 1, 4, 2)

    def test_features_that_share_nothing(self) -> None:
        phi_q = torch.tensor([[1.0, 0.0], [0.0, 1.0]])[None, None]
        phi_k = torch.tensor([[1.0, 0.0], [1.0, 0.0]])[None, None]
        with pytest.raises(ValueError, match="not a probability"):
            LinearMatrix(phi_q, phi_k)

    def test_a_padding_mask_of_the_wrong_shape(self) -> None:
        q, k = gaussian(5, 2)
        with pytest.raises(ValueError, match=r"\(1, 5\)"):
            SoftmaxMatrix(q, k, key_mask=torch.ones(1, 4, dtype=torch.bool))
