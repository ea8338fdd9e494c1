"""Softmax attention inside blocks on the compiled kernel: against the dense matrix, and what must not change a bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lln.dense import block_diagonal_matrix
from lln.ops.blocks import OpenOperands, Operands, native
from lln.ops.masks import masked_softmax
from tests.ops.cases import boundaries, key_mask, lay_out
from tests.ops.tolerance import assert_as_good

MASKS = ("none", "right", "left", "holes", "some samples empty", "packed")
SHAPES = {  # length, block size, head size, value size, query heads of a key head
    "one of everything": (1, 1, 1, 1, 1),
    "tuned size": (128, 64, 64, 64, 1),
    "ragged last block": (150, 64, 64, 64, 1),
    "odd sizes": (50, 7, 33, 17, 2),
    "values wider than keys": (47, 16, 7, 70, 1),
    "blocks larger than a tile of queries": (330, 200, 8, 16, 2),
    "one block larger than the sequence": (90, 5000, 16, 16, 1),
    "a block of more than a thousand": (1300, 1200, 16, 8, 1),
}
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, dict[str, object]]


def inputs(
    shape: str, mask: str, causal: bool, dtype: torch.dtype = torch.float32, layout: str = "contiguous"
) -> Inputs:
    """q, k, v, the gradient that comes back, and options; keys and values that do not count are NaN."""
    length, block_size, dim, value_dim, groups = SHAPES[shape]
    generator = torch.Generator().manual_seed(3)
    batch = 1 if mask == "packed" else 2

    def normal(heads: int, features: int) -> Tensor:
        return torch.randn(batch, heads, length, features, generator=generator).to(dtype)

    q, k, v, grad = normal(2 * groups, dim), normal(2, dim), normal(2, value_dim), normal(2 * groups, value_dim)
    options: dict[str, object] = {"block_size": block_size, "is_causal": causal, "scale": dim**-0.5}
    if mask == "packed":
        options["cu_seqlens"] = boundaries(length, generator)
    elif (counts := key_mask(mask, batch, length, generator)) is not None:
        options["key_mask"] = counts
        k, v = (torch.where(counts[:, None, :, None], x, torch.nan) for x in (k, v))
    q, k, v, grad = (lay_out(x, layout) for x in (q, k, v, grad))
    return q, k, v, grad, options


def block_forward(x: Operands) -> Tensor:
    return native.forward(x).out


def block_backward(grad: Tensor, x: Operands) -> tuple[Tensor, ...]:
    found = native.backward({"out": grad}, None, x, {"q", "k", "v"})
    return found["q"], found["k"], found["v"]


def attend_to_block(*operands: Any) -> Tensor:
    return native.forward_open(OpenOperands(*operands)).out


def kernel(function: Callable[..., object], *tensors: Tensor, options: dict[str, object]) -> object:
    *gradient, q, k, v = tensors
    operands = Operands(
        q, k, v, options.get("key_mask"), options.get("cu_seqlens"),
        options["block_size"], options["scale"], options["is_causal"],
    )  # fmt: skip
    return function(*gradient, operands)


def dense(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, options: dict[str, object], dtype: torch.dtype
) -> list[Tensor]:
    """Output and gradients of the dense formula in `dtype`, keys that do not count taken as zero."""
    allowed = block_diagonal_matrix(torch.zeros_like(q), torch.zeros_like(k), **options) > 0
    mask = options.get("key_mask")
    if mask is not None:
        k, v = (torch.where(mask[:, None, :, None], x, 0.0) for x in (k, v))
    q, k, v = leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    out = masked_softmax(q @ keys.mT * options["scale"], allowed) @ values
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(dtype))]


def check(given: Inputs) -> None:
    """As good as plain float32: errors at most twice its own (gradients: three times), and a few last places of the terms."""
    q, k, v, grad, options = given
    found = [kernel(block_forward, q, k, v, options=options), *kernel(block_backward, grad, q, k, v, options=options)]
    true, plain = (dense(*given, dtype) for dtype in (torch.float64, torch.float32))
    sizes, unit = term_sizes(q, k, v, grad, abs(options["scale"])), torch.finfo(q.dtype).eps
    for name, actual, single, expected in zip(sizes, found, plain, true, strict=True):
        assert actual.dtype == q.dtype
        assert_as_good(actual, [single], expected, 2 if name == "output" else 3, sizes[name], unit, 0.0, name)


def term_sizes(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, scale: float) -> dict[str, float]:
    """How large the terms are that add up to each result, as in `tests.tolerance`: weights are at most 1."""
    largest_q, largest_k, largest_grad = (float(x.nan_to_num(0.0).abs().max()) for x in (q, k, grad))
    largest_value = v.nan_to_num(0.0).double().abs().amax(dim=(0, 1, 2))  # (Dv,)
    pair = float((grad.double().abs() @ largest_value).max())  # bounds |dout_i . v_j|
    return {
        "output": float(largest_value.max()),
        "q": scale * largest_k * pair,
        "k": scale * largest_q * pair,
        "v": largest_grad,
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_instruction_set_agrees_with_the_dense_matrix(isa: str, shape: str, causal: bool) -> None:
    check(inputs(shape, "none", causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_agrees_with_the_dense_matrix(isa: str, mask: str, causal: bool) -> None:
    check(inputs("odd sizes", mask, causal))
    check(inputs("ragged last block", mask, causal))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "heads inside", "sliced", "reversed features"])
def test_every_dtype_in_any_layout_agrees_with_the_dense_matrix(isa: str, dtype: torch.dtype, layout: str) -> None:
    check(inputs("odd sizes", "holes", False, dtype, layout))


@pytest.mark.parametrize("scale", [-0.5, 0.0, 40.0])
def test_any_scale_of_the_softmax_gives_what_the_dense_matrix_gives(isa: str, scale: float) -> None:
    *tensors, options = inputs("ragged last block", "none", False)
    check((*tensors, {**options, "scale": scale}))


@pytest.mark.parametrize("causal", [False, True])
def test_the_number_of_threads_changes_no_bit(isa: str, threads: None, causal: bool) -> None:
    q, k, v, grad, options = inputs("blocks larger than a tile of queries", "left", causal)
    results = []
    for number in (1, 2, 3, 8):
        torch.set_num_threads(number)
        out = kernel(block_forward, q, k, v, options=options)
        results.append((out, *kernel(block_backward, grad, q, k, v, options=options)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_a_later_key_that_is_infinite_changes_no_bit_of_an_earlier_row(isa: str) -> None:
    q, k, v, _, options = inputs("ragged last block", "none", True)
    before = kernel(block_forward, q, k, v, options=options)
    k[:, :, 60] = torch.inf
    assert torch.equal(before[:, :, :60], kernel(block_forward, q, k, v, options=options)[:, :, :60])


def test_a_padded_query_that_is_nan_and_has_no_gradient_reaches_no_gradient(isa: str) -> None:
    q, k, v, grad, options = inputs("ragged last block", "none", False)
    grad[:, :, 70] = 0
    expected = kernel(block_backward, grad, q, k, v, options=options)
    q[:, :, 70] = torch.nan
    found = kernel(block_backward, grad, q, k, v, options=options)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_single_query_has_the_bits_of_its_row_in_the_block(isa: str) -> None:
    q, k, v, _, options = inputs("tuned size", "none", True)
    whole = kernel(block_forward, q, k, v, options=options)
    block = slice(64, 128)
    for row in (0, 5, 40, 63):
        counts = (torch.arange(64) <= row).expand(2, -1)
        found = attend_to_block(q[:, :, 64 + row : 65 + row], k[:, :, block], v[:, :, block], counts, options["scale"])
        assert torch.equal(found[:, :, 0], whole[:, :, 64 + row])


def test_a_single_query_without_keys_gives_zeros(isa: str) -> None:
    q, k, v, _, options = inputs("tuned size", "none", True)
    nothing = torch.zeros(2, 128, dtype=torch.bool)
    assert (attend_to_block(q[:, :, :1], k * torch.nan, v * torch.nan, nothing, options["scale"]) == 0).all()


def test_unequal_lengths_are_refused(isa: str) -> None:
    q, k, v, _, options = inputs("tuned size", "none", False)
    with pytest.raises(ValueError, match="as many queries as keys"):
        kernel(block_forward, q[:, :, 1:], k, v, options=options)


@pytest.mark.parametrize("upstream", [1 / 3, 0.1])
def test_a_gradient_is_as_exact_in_a_block_of_thousands_as_in_a_small_one(isa: str, upstream: float) -> None:
    """Roundings that go the same way in every row, and the terms of every row in one sum: all rows see the first key only."""
    length = 2048
    q, k, v = torch.randn(1, 6, length, 2), torch.zeros(1, 2, length, 2), torch.zeros(1, 2, length, 16)
    grad, first = torch.full((1, 6, length, 16), upstream), (torch.arange(length) == 0)[None]
    options = {"block_size": length, "is_causal": True, "scale": 1.0, "key_mask": first}
    _, _, dv = kernel(block_backward, grad, q, k, v, options=options)
    exact = grad[:, :2].double().sum(dim=2) * 3
    torch.testing.assert_close(dv[:, :, 0].double(), exact, rtol=6e-7, atol=0)


def test_an_output_is_as_exact_in_a_block_of_thousands_as_in_a_small_one(isa: str) -> None:
    """Equal values with equal weights, whose mean is that value."""
    length = 2048
    q, v = torch.zeros(1, 1, length, 2), torch.full((1, 1, length, 16), 1 / 3)
    out = kernel(block_forward, q, q, v, options={"block_size": length, "is_causal": False, "scale": 1.0})
    torch.testing.assert_close(out, v, rtol=6e-7, atol=0)
