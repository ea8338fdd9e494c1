"""alpha and beta straight from q and k, against the same formula in torch."""

import pytest
import torch
from torch import Tensor

from lln.matching import match_statistics
from lln.ops.moments import MatchOperands, native
from lln.ops.moments.statistics import differentiable_moments, statistics_of


def tensors(
    samples: int = 2, query_heads: int = 6, key_heads: int = 2, queries: int = 37, keys: int = 37, dim: int = 33
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(samples, query_heads, queries, dim, generator=generator)
    k = torch.randn(samples, key_heads, keys, dim, generator=generator)
    return 0.3 + q, 2 * k - 1


def expected(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None = None,
    edges: Tensor | None = None,
    target: str = "entropy",
    scale: float | None = None,
    center_keys: bool = False,
) -> tuple[Tensor, Tensor]:
    statistics = statistics_of(
        q, k, key_mask=mask, cu_seqlens=edges, center_keys=center_keys, measure=differentiable_moments
    )
    return match_statistics(statistics, q.shape[3], target=target, scale=scale, detach=False)


def found(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None = None,
    edges: Tensor | None = None,
    target: str = "entropy",
    scale: float | None = None,
    center_keys: bool = False,
) -> tuple[Tensor, Tensor]:
    scale = q.shape[3] ** -0.5 if scale is None else scale
    return native.forward_match(MatchOperands(q, k, mask, edges, "table", target, "head", scale, center_keys))[:2]


def assert_equal_pairs(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=0)


@pytest.mark.parametrize("center_keys", [False, True])
@pytest.mark.parametrize("target", ["entropy", "variance"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_it_is_the_formula(isa: str, dtype: torch.dtype, target: str, center_keys: bool) -> None:
    q, k = (x.to(dtype) for x in tensors())
    options = {"target": target, "center_keys": center_keys}
    assert_equal_pairs(found(q, k, **options), expected(q, k, **options))


@pytest.mark.parametrize("spread", [0.0, 1e-20, 1e-3, 0.5, 3.0, 30.0, 1e10])
def test_inside_and_beyond_the_table(isa: str, spread: float) -> None:
    q, k = tensors()
    assert_equal_pairs(found(spread * q, k), expected(spread * q, k))
    assert_equal_pairs(found(spread * q, k, scale=0.7), expected(spread * q, k, scale=0.7))


@pytest.mark.parametrize("keys", [1, 2, 37, 300, 3000])
def test_any_number_of_keys(isa: str, keys: int) -> None:
    q, k = tensors(keys=keys)
    assert_equal_pairs(found(q, k), expected(q, k))


def test_padding_is_not_looked_at(isa: str) -> None:
    q, k = tensors(samples=3)
    mask = torch.rand(3, 37) < 0.5
    mask[1] = False
    garbage = [torch.where(mask[:, None, :, None], x, torch.nan) for x in (q, k)]
    assert_equal_pairs(found(*garbage, mask=mask), expected(q, k, mask=mask))


def test_with_as_many_queries_as_it_likes_every_query_counts(isa: str) -> None:
    q, k = tensors(queries=50)
    mask = torch.rand(2, 37) < 0.5
    assert_equal_pairs(found(q, k, mask=mask), expected(q, k, mask=mask))


def test_packed_sequences_are_matched_each_by_itself(isa: str) -> None:
    q, k = tensors(samples=1)
    edges = torch.tensor([0, 7, 7, 37])
    assert_equal_pairs(found(q, k, edges=edges), expected(q, k, edges=edges))


@pytest.mark.parametrize("number", [1, 2, 5])
def test_neither_threads_nor_right_padding_change_a_bit(isa: str, threads: None, number: int) -> None:
    q, k = tensors(samples=1, query_heads=1, key_heads=1, queries=5000, keys=5000, dim=16)
    torch.set_num_threads(1)
    alone = found(q[:, :, :4321], k[:, :, :4321])
    torch.set_num_threads(number)
    padded = found(q, k, mask=(torch.arange(5000) < 4321)[None])
    assert all(torch.equal(a, b) for a, b in zip(alone, padded, strict=True))
