"""near_far_attention: what it is where it can be said exactly, its defaults, and what it refuses."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lln.matching import match_moments
from lln.near_far import NEUTRAL, near_far_attention

FAR_ONLY_LLN, FAR_ONLY_MEAN = torch.tensor([0.0, 1.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0, 0.0])


def qkv(length: int = 70, dim: int = 8, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(3, 2, 4, length, dim, dtype=dtype).unbind(0))  # type: ignore[return-value]


@pytest.mark.parametrize("weights", [FAR_ONLY_LLN, FAR_ONLY_MEAN], ids=["LLN", "mean"])
def test_rows_with_one_far_key_are_softmax(weights: Tensor) -> None:
    """The mass of one key is known exactly, and so is its value."""
    q, k, v = qkv(length=17)
    out = near_far_attention(q, k, v, weights=weights, block_size=16)
    torch.testing.assert_close(out[:, :, :16], F.scaled_dot_product_attention(q, k, v)[:, :, :16])


def test_far_keys_that_are_all_alike_are_softmax() -> None:
    q, k, v = qkv()
    k[:, :, 16:] = k[:, :, 16:17]
    out = near_far_attention(q, k, v, weights=FAR_ONLY_MEAN, block_size=16)
    torch.testing.assert_close(out[:, :, :16], F.scaled_dot_product_attention(q, k, v)[:, :, :16])


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_that_holds_everything_is_softmax(causal: bool) -> None:
    q, k, v = qkv()
    out = near_far_attention(q, k, v, 1.0, 1.0, block_size=16, neighbours=4, is_causal=causal)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=causal))


def test_first_tokens_that_are_everything_are_softmax() -> None:
    q, k, v = qkv()
    out = near_far_attention(q, k, v, block_size=8, first_tokens=70)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v))


def test_of_gaussian_keys_and_values_the_first_order_is_softmax_up_to_sampling() -> None:
    """Softmax's output over many jointly Gaussian keys and values is v_mean + s Cov(v, k) q; the mean alone misses it."""
    length, dim = 8192, 4
    q, k, noise = torch.randn(3, 1, 1, length, dim, dtype=torch.float64).unbind(0)
    v = k @ torch.randn(dim, dim, dtype=torch.float64) + 0.3 * noise
    exact = F.scaled_dot_product_attention(q, k, v)

    def error(weights: list[float]) -> float:
        out = near_far_attention(q, k, v, weights=torch.tensor(weights), block_size=16)
        return float((out - exact).square().mean() / exact.square().mean())

    with_slope, without = error([0.0, 0.0, 1.0, 1.0]), error([0.0, 0.0, 1.0, 0.0])
    assert with_slope < 0.02 < 0.5 < without


def test_the_far_share_of_gaussian_keys_is_softmaxs() -> None:
    """Values that are 1 in near and 0 in far read off the near share."""
    q, k, _ = qkv(length=512, dim=16)
    shares = []
    for block in range(0, 512, 64):
        v = torch.zeros(2, 4, 512, 1, dtype=torch.float64)
        v[:, :, block : block + 64] = 1.0
        rows = slice(block, block + 64)
        found = near_far_attention(q, k, v, weights=FAR_ONLY_MEAN, block_size=64)[:, :, rows]
        shares.append(torch.stack([found, F.scaled_dot_product_attention(q, k, v)[:, :, rows]]))
    found, true = torch.cat(shares, dim=3).log()
    assert float((found - true).abs().mean()) < 0.15 and abs(float((found - true).mean())) < 0.05


def test_what_is_left_out_is_neutral_and_matched_about_the_mean_key() -> None:
    q, k, v = qkv()
    alpha, beta = match_moments(q, k, center_keys=True)
    bias = -beta * k.mean(dim=2, keepdim=True)
    out = near_far_attention(q, k, v, alpha, beta, feature_bias=bias, weights=torch.tensor(NEUTRAL), block_size=16)
    torch.testing.assert_close(near_far_attention(q, k, v, block_size=16), out)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_defaults_of_a_sequence_do_not_depend_on_its_company(packed: bool) -> None:
    q, k, v = qkv()
    alone = near_far_attention(q[:1, :, :40], k[:1, :, :40], v[:1, :, :40], block_size=16)
    if packed:
        edges = torch.tensor([0, 40, 70])
        out = near_far_attention(q[:1], k[:1], v[:1], block_size=16, cu_seqlens=edges)
    else:
        mask = torch.arange(70) < torch.tensor([[40], [70]])
        out = near_far_attention(q, k, v, block_size=16, key_mask=mask)
    torch.testing.assert_close(out[:1, :, :40], alone)


def test_weights_of_each_head_are_its_own() -> None:
    q, k, v = qkv()
    weights = torch.randn(4, 4, dtype=torch.float64)
    out = near_far_attention(q, k, v, weights=weights, block_size=16)
    for head in range(4):
        alone = near_far_attention(q, k, v, weights=weights[head], block_size=16)
        torch.testing.assert_close(out[:, head], alone[:, head])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": torch.ones(3)}, r"weights are \(near, lln, mean, slope\)"),
        ({"weights": torch.ones(7, 4)}, "must broadcast to"),
        ({"neighbours": -1}, "neighbours must be a whole number"),
        ({"first_tokens": 1.5}, "first_tokens must be a whole number"),
        ({"block_size": 0}, "block_size must be a whole number"),
        ({"is_causal": True}, "causal attention needs alpha and beta"),
        ({"return_state": True}, "need is_causal=True"),
        ({"backend": "imagined"}, "unknown backend"),
        ({"key_mask": torch.ones(70, 70, dtype=torch.bool)}, "an N x N mask"),
        (
            {"alpha": 1.0, "beta": 1.0, "is_causal": True, "return_state": True, "backend": "oracle"},
            "choose the backend",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_words(change: dict[str, Any], words: str) -> None:
    q, k, v = qkv()
    with pytest.raises(ValueError, match=words):
        near_far_attention(q, k, v, **change)


def test_key_padding_mask_belongs_to_layers() -> None:
    with pytest.raises(TypeError, match="key_mask"):
        near_far_attention(*qkv(), key_padding_mask=torch.zeros(2, 70, dtype=torch.bool))  # type: ignore[call-overload]


def test_queries_and_keys_are_of_one_length() -> None:
    q, k, v = qkv()
    with pytest.raises(ValueError, match="as many queries as keys"):
        near_far_attention(q[:, :, :5], k, v)
