"""Sums over positions, and the variances made of them."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lln.ops.moments import plain_sums
from lln.ops.moments.statistics import differentiable_moments, moments, statistics_of


def _random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    length=st.integers(1, 40),
    dim=st.integers(1, 9),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    heads_last=st.booleans(),
    masked=st.booleans(),
    seed=st.integers(0, 99),
)
def test_sums_are_those_of_float64(
    batch: int, heads: int, length: int, dim: int, dtype: torch.dtype, heads_last: bool, masked: bool, seed: int
) -> None:
    x = _random(batch, heads, length, dim, seed=seed, dtype=dtype)
    if heads_last:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    mask = _random(batch, length, seed=seed + 1) > 0 if masked else None
    counted = x.double() if mask is None else x.double() * mask[:, None, :, None]
    found = moments(x, mask)
    assert found.total.dtype == found.squares.dtype == torch.float64
    torch.testing.assert_close(found.total, counted.sum(2), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.squares, counted.square().sum(2), rtol=1e-12, atol=1e-12)
    assert found.count.tolist() == ([length] * batch if mask is None else mask.sum(1).tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_in_padding_does_not_leak(dtype: torch.dtype) -> None:
    x = _random(2, 3, 11, 4, dtype=dtype)
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[0, :5] = False
    poisoned = x.masked_fill(~mask[:, None, :, None], math.nan)
    for clean, dirty in zip(moments(x, mask), moments(poisoned, mask), strict=True):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_sequences_are_a_loop_over_them(dtype: torch.dtype) -> None:
    x = _random(1, 2, 23, 4, dtype=dtype)
    bounds = [0, 5, 5, 6, 23]
    found = moments(x, None, torch.tensor(bounds))
    for i, (begin, end) in enumerate(itertools.pairwise(bounds)):
        alone = moments(x[:, :, begin:end])
        assert found.count[i] == end - begin
        torch.testing.assert_close(found.total[i], alone.total[0], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(found.squares[i], alone.squares[0], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("packed", [False, True])
def test_pieces_add_up(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = _random(1, 2, 37, 4, dtype=torch.float64)
    cu_seqlens = torch.tensor([0, 10, 37]) if packed else None
    mask = None if packed else _random(1, 37) > 0
    whole = moments(x, mask, cu_seqlens)
    monkeypatch.setattr(plain_sums, "PIECE_ELEMENTS", 40)
    for one, other in zip(whole, moments(x, mask, cu_seqlens), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def test_a_large_mean_does_not_drown_the_variance() -> None:
    x = (_random(1, 1, 5000, 8) + 1000).float()
    found = statistics_of(x, x)
    exact = x.double().var(correction=0)
    torch.testing.assert_close(found.var_q[0, 0], exact, rtol=1e-8, atol=0)


def test_query_heads_of_a_key_head_are_pooled() -> None:
    q, k = _random(2, 6, 19, 4, dtype=torch.float64), _random(2, 3, 19, 4, seed=1, dtype=torch.float64)
    found = statistics_of(q, k)
    for head in range(3):
        group = q[:, 2 * head : 2 * head + 2].flatten(1)
        torch.testing.assert_close(found.var_q[:, head], group.var(dim=1, correction=0))
        torch.testing.assert_close(found.mean_q[:, head], group.mean(dim=1))
        torch.testing.assert_close(found.var_k[:, head], k[:, head].flatten(1).var(dim=1, correction=0))


def test_variance_about_the_mean_key_does_not_see_a_shift_of_all_keys() -> None:
    k = _random(2, 3, 50, 4, dtype=torch.float64)
    shift = 7 * _random(2, 3, 1, 4, seed=3, dtype=torch.float64)
    for per in ("head", "tensor"):
        plain, shifted = (statistics_of(x, x, center_keys=True, per=per) for x in (k, k + shift))
        torch.testing.assert_close(plain.var_k, shifted.var_k, rtol=1e-10, atol=0)
    assert (statistics_of(k, k + shift).var_k > 2 * statistics_of(k, k).var_k).all()


def test_whole_tensor_statistics_are_those_of_all_numbers() -> None:
    q, k = _random(3, 4, 17, 5, dtype=torch.float64), 2 + _random(3, 2, 17, 5, seed=1, dtype=torch.float64)
    found = statistics_of(q, k, per="tensor", ddof=1)
    torch.testing.assert_close(found.var_q, q.var().expand(3, 2))
    torch.testing.assert_close(found.var_k, k.var().expand(3, 2))


def test_queries_of_another_length_are_not_masked() -> None:
    q, k = _random(2, 1, 9, 4), _random(2, 1, 6, 4)
    mask = torch.tensor([[True] * 3 + [False] * 3] * 2)
    assert torch.equal(statistics_of(q, k, key_mask=mask).var_q, statistics_of(q, k).var_q)


@pytest.mark.parametrize("packed", [False, True])
def test_differentiable_sums_are_the_same_sums(packed: bool) -> None:
    x = _random(1, 2, 12, 3, dtype=torch.float64)
    mask = None if packed else _random(1, 12) > 0
    cu_seqlens = torch.tensor([0, 4, 12]) if packed else None
    for one, other in zip(moments(x, mask, cu_seqlens), differentiable_moments(x, mask, cu_seqlens), strict=True):
        torch.testing.assert_close(one, other)


def test_the_operator_keeps_torchs_contracts() -> None:
    x = _random(2, 3, 7, 4)
    mask = torch.ones(2, 7, dtype=torch.bool)
    torch.library.opcheck(torch.ops.lln.moments.default, (x, mask, None, "auto"))
    torch.library.opcheck(torch.ops.lln.moments.default, (x[:1], None, torch.tensor([0, 3, 7]), "auto"))


def test_statistics_of_inputs_that_require_gradients_carry_none() -> None:
    x = _random(1, 1, 5, 3).requires_grad_()
    assert not any(t.requires_grad for t in moments(x))
    assert all(t.requires_grad for t in differentiable_moments(x)[1:])


def test_vmap_folds_into_the_batch() -> None:
    x = _random(3, 2, 4, 7, 5)
    mapped = torch.vmap(moments)(x)
    for i in range(3):
        for one, other in zip(mapped, moments(x[i]), strict=True):
            assert torch.equal(one[i], other)
    with pytest.raises(RuntimeError, match="vmap over packed sequences"):
        torch.vmap(lambda y: moments(y, None, torch.tensor([0, 7])))(x[:, :1])
