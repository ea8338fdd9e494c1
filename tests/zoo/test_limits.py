"""Approximations approach their own target as their parameter grows."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lln.zoo

LENGTH, DIM = 48, 16


def tokens() -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, 1, 2, LENGTH, DIM, dtype=torch.float64).unbind(0)
    return q, k, v


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def softmax_of_unit_vectors(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    return torch.softmax(q @ k.mT, dim=-1) @ v


def gaussian(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    squared = (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
    return torch.exp(-squared / (2 * math.sqrt(DIM))) @ v


def error(name: str, target: Callable[..., Tensor], inputs: Sequence[Tensor], draws: int, **options: Any) -> float:
    """Relative error, as the root mean square over draws."""
    true = target(*inputs)
    seeds = [{"seed": s} for s in range(draws)] if draws > 1 else [{}]
    squares = [
        float(((lln.zoo.attention(name, **options, **seed)(*inputs) - true).norm() / true.norm()) ** 2)
        for seed in seeds
    ]
    return math.sqrt(sum(squares) / len(squares))


@pytest.mark.parametrize(("name", "target"), [("performer", softmax), ("rfa", softmax_of_unit_vectors)])
def test_random_features_approach_their_target_like_one_over_root_m(name: str, target: Callable[..., Tensor]) -> None:
    q, k, v = tokens()
    inputs = (q / 2, k / 2, v)  # positive features have heavy tails: larger inputs need many more of them
    few, many, most = (error(name, target, inputs, 12, features=m) for m in (256, 1024, 4096))
    assert many < 0.65 * few and most < 0.65 * many
    assert most < 0.15


def test_performer_features_are_orthogonal_inside_blocks() -> None:
    from lln.zoo.members.performer import orthogonal_gaussian

    rows = orthogonal_gaussian(2 * DIM, DIM, torch.Generator().manual_seed(0)).unflatten(0, (2, DIM))
    gram = rows @ rows.mT
    off = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
    assert off.abs().max() < 1e-10
    norms = orthogonal_gaussian(4000, DIM, torch.Generator().manual_seed(1)).square().sum(1)
    assert abs(float(norms.mean()) - DIM) < 0.5  # chi-squared with DIM degrees of freedom
    assert abs(float(norms.var()) - 2 * DIM) < 4


def test_orthogonal_features_are_better_than_independent_ones() -> None:
    """Why the paper draws them so: the error of the kernel estimate is smaller."""
    from lln.zoo.members.performer import orthogonal_gaussian

    x, y = 0.5 * torch.randn(2, 64, DIM, dtype=torch.float64)
    true = (x * y).sum(-1).exp()

    def squared_error(directions: Tensor) -> float:
        features = [(t @ directions.T - t.square().sum(-1, keepdim=True) / 2).exp() for t in (x, y)]
        return float(((features[0] * features[1]).mean(-1) - true).square().mean())

    generator = torch.Generator().manual_seed(2)
    orthogonal = sum(squared_error(orthogonal_gaussian(DIM, DIM, generator)) for _ in range(300))
    independent = sum(
        squared_error(torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)) for _ in range(300)
    )
    assert orthogonal < independent


def test_nystromformer_approaches_softmax() -> None:
    inputs = tokens()
    errors = [error("nystromformer", softmax, inputs, 1, landmarks=m, iterations=60) for m in (4, 24, LENGTH)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-6


def test_the_iterated_pseudo_inverse_is_the_pseudo_inverse() -> None:
    from lln.zoo.members.nystromformer import pseudo_inverse

    matrix = torch.softmax(torch.randn(3, 6, 6, dtype=torch.float64), dim=-1)
    torch.testing.assert_close(pseudo_inverse(matrix, 40), torch.linalg.pinv(matrix), rtol=1e-6, atol=1e-6)


def test_skyformer_approaches_gaussian_attention() -> None:
    inputs = tokens()
    few, many = (error("skyformer", gaussian, inputs, 6, landmarks=m, ridge=1e-8) for m in (12, 72))
    every = error("skyformer", gaussian, inputs, 2, landmarks=2 * LENGTH, ridge=1e-10)
    assert few > many > every
    assert every < 1e-6


def test_reformer_of_many_rounds_is_softmax_of_shared_queries() -> None:
    """With enough rounds every pair meets in a bucket."""
    q, _, v = tokens()
    scores = q @ F.normalize(q, dim=-1).mT / math.sqrt(DIM) - 1e5 * torch.eye(LENGTH)
    true = torch.softmax(scores, dim=-1) @ v
    errors = []
    for rounds in (1, 8, 64):
        out = lln.zoo.attention("reformer", chunk=24, rounds=rounds, seed=0)(q, q, v)
        errors.append(float((out - true).norm() / true.norm()))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.05


def test_a_window_over_everything_is_softmax() -> None:
    q, k, v = tokens()
    out = lln.zoo.attention("longformer", window=2 * LENGTH, global_tokens=0)(q, k, v)
    torch.testing.assert_close(out, softmax(q, k, v))


def test_one_block_over_everything_is_softmax() -> None:
    q, k, v = tokens()
    torch.testing.assert_close(lln.zoo.attention("block_diagonal", block_size=LENGTH)(q, k, v), softmax(q, k, v))
