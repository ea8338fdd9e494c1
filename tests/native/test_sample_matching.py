"""Matching on a sample, natively, against the same in torch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lln.ops.moments import Matched, MatchOperands, native, plain

matching_inputs = pytest.importorskip("lln_lab.bench.matching_inputs", reason="the inputs are the laboratory's")
INPUTS, draw = matching_inputs.INPUTS, matching_inputs.draw


def _match_natively(q: Tensor, k: Tensor, mask: Tensor | None, edges: Tensor | None, *rest: Any) -> Matched:
    method, target, scale, center_keys = rest
    return native.forward_match(MatchOperands(q, k, mask, edges, method, target, "head", scale, center_keys))


def _match_on_sample(q: Tensor, k: Tensor, mask: Tensor | None, edges: Tensor | None, *rest: Any) -> Matched:
    target, scale, center_keys = rest
    return plain.forward(MatchOperands(q, k, mask, edges, "sample", target, "head", scale, center_keys))


def assert_as_torch(
    q: Tensor, k: Tensor, scale: float | None = None, center_keys: bool = False, **given: Tensor
) -> None:
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    mask, edges = given.get("mask"), given.get("edges")
    found = _match_natively(q, k, mask, edges, "sample", "entropy", scale, center_keys)
    expected = _match_on_sample(q, k, mask, edges, "entropy", scale, center_keys)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize(("head_dim", "length"), [(64, 90), (33, 700), (128, 9000)])
def test_it_is_what_torch_finds(isa: str, name: str, head_dim: int, length: int) -> None:
    if length > 1000 and name not in ("Student t, 3 degrees", "Gaussian"):
        pytest.skip("long ones are few")
    assert_as_torch(*draw(name, head_dim, length, 0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("center_keys", [False, True])
def test_in_half_precision_and_with_centred_keys(isa: str, dtype: torch.dtype, center_keys: bool) -> None:
    q, k = draw("mean of one deviation", 40, 600, 0)
    assert_as_torch(q.to(dtype), k.to(dtype), scale=0.3, center_keys=center_keys)


def grouped(tokens: int = 500) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 9, tokens, 24, generator=generator)
    k = torch.randn(2, 3, tokens, 24, generator=generator).pow(3) / 3
    return q, k


def test_with_padding_packed_and_of_different_numbers(isa: str) -> None:
    q, k = grouped()
    mask = torch.rand(2, 500, generator=torch.Generator().manual_seed(1)) < torch.tensor([[0.8], [0.2]])
    assert_as_torch(q, k, mask=mask)
    assert_as_torch(q[:, :, :77], k, mask=mask)
    assert_as_torch(q[:1], k[:1], edges=torch.tensor([0, 3, 3, 150, 500]))


def test_in_any_layout(isa: str) -> None:
    q, k = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in grouped())
    assert_as_torch(q, k)
    assert_as_torch(
        q.transpose(2, 3).contiguous().transpose(2, 3), k[..., ::1].transpose(2, 3).contiguous().transpose(2, 3)
    )


@pytest.mark.parametrize("number", [2, 5])
def test_threads_do_not_change_a_bit(isa: str, threads: None, number: int) -> None:
    q, k = grouped(900)
    torch.set_num_threads(1)
    alone = _match_natively(q, k, None, None, "sample", "entropy", 0.2, False)
    torch.set_num_threads(number)
    together = _match_natively(q, k, None, None, "sample", "entropy", 0.2, False)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
