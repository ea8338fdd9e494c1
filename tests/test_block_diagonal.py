"""Block-diagonal softmax attention against its own dense matrix."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lln import block_diagonal_attention
from lln.dense import block_diagonal_matrix
from tests.ops.cases import boundaries, key_mask, lay_out


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> torch.Tensor:
    matrix = block_diagonal_matrix(q.double(), k.double(), **options)
    mask = options.get("key_mask")
    v = v.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return matrix @ (v if mask is None else torch.where(mask[:, None, :, None], v, 0.0))


@settings(max_examples=150)
@given(
    length=st.one_of(st.integers(1, 20), st.integers(60, 140)),
    block_size=st.sampled_from((1, 3, 16, 64, 200)),
    dims=st.tuples(st.sampled_from((1, 8, 33)), st.sampled_from((1, 8, 16))),
    groups=st.integers(1, 3),
    causal=st.booleans(),
    mask=st.sampled_from(("none", "right", "left", "holes", "some samples empty", "packed")),
    layout=st.sampled_from(("contiguous", "heads inside", "sliced")),
    seed=st.integers(0, 1000),
)
def test_blocks_agree_with_the_dense_matrix(length, block_size, dims, groups, causal, mask, layout, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    batch = 1 if mask == "packed" else 2

    def normal(heads: int, dim: int) -> torch.Tensor:
        return lay_out(torch.randn(batch, heads, length, dim, dtype=torch.float64, generator=generator), layout)

    q, k, v = normal(2 * groups, dims[0]), normal(2, dims[0]), normal(2, dims[1])
    options = {"block_size": block_size, "is_causal": causal}
    if mask == "packed":
        options["cu_seqlens"] = boundaries(length, generator)
    else:
        options["key_mask"] = key_mask(mask, batch, length, generator)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, true = block_diagonal_attention(*leaves, **options), dense(*leaves, **options)
    torch.testing.assert_close(out, true, atol=1e-12, rtol=1e-10)
    upstream = torch.randn(out.shape, dtype=torch.float64, generator=generator)
    for actual, expected in zip(
        torch.autograd.grad(out, leaves, upstream), torch.autograd.grad(true, leaves, upstream), strict=True
    ):
        torch.testing.assert_close(actual, expected, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_blocks_take_every_dtype(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 3, 70, 16).to(dtype) for _ in range(3))
    out = block_diagonal_attention(q, k, v, block_size=32)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), dense(q, k, v, block_size=32), atol=8 * torch.finfo(dtype).eps, rtol=0)


def test_left_padding_changes_nothing() -> None:
    q, k, v = (torch.randn(1, 2, 100, 8) for _ in range(3))
    padded = [torch.cat([torch.full((1, 2, 13, 8), torch.nan), x], dim=2) for x in (k, v)]
    mask = torch.arange(113)[None] >= 13
    out = block_diagonal_attention(torch.cat([torch.zeros(1, 2, 13, 8), q], dim=2), *padded, key_mask=mask)
    torch.testing.assert_close(out[:, :, 13:], block_diagonal_attention(q, k, v))
    assert (out[:, :, :13] == 0).all()


def test_the_scale_of_the_softmax_can_be_chosen() -> None:
    q, k, v = (torch.randn(1, 2, 50, 8, dtype=torch.float64) for _ in range(3))
    out = block_diagonal_attention(q, k, v, scale=0.7)
    torch.testing.assert_close(out, dense(q, k, v, scale=0.7))
    assert not torch.allclose(out, block_diagonal_attention(q, k, v))


@pytest.mark.parametrize("mask", ["none", "right", "left", "holes", "packed"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_operator_used_in_graphs_agrees_with_autograd(mask: str, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    batch = 1 if mask == "packed" else 2
    q, k, v = (torch.randn(batch, heads, 90, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    counts = None if mask == "packed" else key_mask(mask, batch, 90, generator)
    edges = boundaries(90, generator) if mask == "packed" else None
    arguments = (q, k, v, counts, edges, 16, 0.3, causal, "chunked")
    torch.library.opcheck(torch.ops.lln.blocks.default, arguments)
    out = torch.ops.lln.blocks(*arguments)
    eager = block_diagonal_attention(
        q, k, v, block_size=16, scale=0.3, key_mask=counts, cu_seqlens=edges, is_causal=causal
    )
    torch.testing.assert_close(out, eager)
    upstream = torch.randn_like(out)
    for actual, expected in zip(
        torch.autograd.grad(out, (q, k, v), upstream), torch.autograd.grad(eager, (q, k, v), upstream), strict=True
    ):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("mask", ["none", "right", "left", "holes", "packed"])
@pytest.mark.parametrize("causal", [False, True])
def test_single_precision_agrees_with_double_in_outputs_and_gradients(mask: str, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    batch = 1 if mask == "packed" else 2
    tensors = [torch.randn(batch, heads, 90, 8, generator=generator) for heads in (4, 2, 2)]
    options = {"block_size": 16, "is_causal": causal}
    if mask == "packed":
        options["cu_seqlens"] = boundaries(90, generator).int()
    else:
        options["key_mask"] = key_mask(mask, batch, 90, generator)
    upstream = torch.randn(batch, 4, 90, 8, generator=generator)
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        out = block_diagonal_attention(*leaves, **options)
        results.append((out, *torch.autograd.grad(out, leaves, upstream.to(dtype))))
    for single, double in zip(*results, strict=True):
        torch.testing.assert_close(single.double(), double, atol=5e-6, rtol=0)


def test_functional_gradients_are_those_of_autograd() -> None:
    q, k, v = (torch.randn(2, 4, 50, 8) for _ in range(3))

    def total(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return block_diagonal_attention(q, k, v, block_size=16).square().sum()

    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(total(*leaves), leaves)
    for a, b in zip(torch.func.grad(total, argnums=(0, 1, 2))(q, k, v), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_double_backward_is_refused_in_words() -> None:
    q, k, v = (torch.randn(1, 2, 20, 8, requires_grad=True) for _ in range(3))
    out = torch.ops.lln.blocks(q, k, v, None, None, 8, 0.3, False, "auto")
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no double backward"):
        dq.sum().backward()


def test_an_empty_packed_sequence_is_passed_over() -> None:
    q, k, v = (torch.randn(1, 2, 20, 8) for _ in range(3))
    edges = torch.tensor([0, 0, 9, 9, 20])
    out = block_diagonal_attention(q, k, v, block_size=4, cu_seqlens=edges)
    torch.testing.assert_close(
        out, block_diagonal_attention(q, k, v, block_size=4, cu_seqlens=torch.tensor([0, 9, 20]))
    )
