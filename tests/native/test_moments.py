"""The single pass over q or k that matching needs."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from lln.ops.moments import Moments, Operands, native


def moments(x: Tensor, key_mask: Tensor | None = None, cu_seqlens: Tensor | None = None) -> Moments:
    return native.forward(Operands(x, key_mask, cu_seqlens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [1, 33, 64])
def test_moments_are_those_of_float64(isa: str, dtype: torch.dtype, dim: int) -> None:
    x = (5 + torch.randn(2, 2500, 3, dim)).to(dtype).transpose(1, 2)
    count, total, squares = moments(x)
    assert count.tolist() == [2500, 2500]
    torch.testing.assert_close(total, x.double().sum(dim=2), rtol=1e-12, atol=0)
    torch.testing.assert_close(squares, x.double().square().sum(dim=2), rtol=1e-12, atol=0)


def test_values_far_from_zero_keep_their_variance(isa: str) -> None:
    x = 1e4 + torch.randn(1, 1, 4000, 8)
    count, total, squares = moments(x)
    variance = squares / count[:, None, None] - (total / count[:, None, None]) ** 2
    torch.testing.assert_close(variance, x.double().var(dim=2, unbiased=False), rtol=1e-6, atol=0)


def test_positions_that_do_not_count_are_not_looked_at(isa: str) -> None:
    x, mask = torch.randn(2, 3, 100, 20), torch.rand(2, 100) < 0.5
    garbage = torch.where(mask[:, None, :, None], x, torch.nan)
    count, total, squares = moments(garbage, key_mask=mask)
    counted = torch.where(mask[:, None, :, None], x, 0.0).double()
    assert torch.equal(count, mask.sum(dim=1).double())
    torch.testing.assert_close(total, counted.sum(dim=2))
    torch.testing.assert_close(squares, counted.square().sum(dim=2))


def test_packed_sequences_have_moments_of_their_own(isa: str) -> None:
    x, edges = torch.randn(1, 2, 300, 16), [0, 7, 7, 300]
    count, total, _ = moments(x, cu_seqlens=torch.tensor(edges))
    assert count.tolist() == [7, 0, 293]
    expected = [x[0, :, a:b].double().sum(dim=1) for a, b in pairwise(edges)]
    torch.testing.assert_close(total, torch.stack(expected))


def test_the_number_of_threads_changes_no_bit_of_the_moments(isa: str, threads: None) -> None:
    x = torch.randn(1, 1, 5000, 16)
    torch.set_num_threads(1)
    alone = moments(x)
    torch.set_num_threads(3)
    assert all(torch.equal(a, b) for a, b in zip(alone, moments(x), strict=True))
