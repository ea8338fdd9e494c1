"""Attention over frames: bidirectional inside a frame, causal between frames, against the whole matrix in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

import lln
from lln.ops.lln import Operands, oracle
from lln.ops.masks import masked_softmax
from tests.ops.subjects import every_backend_name
from tests.ops.tolerance import GRADIENT_FACTOR, OUTPUT_FACTOR, UNITS_IN_LAST_PLACE

MASKS = {
    "none": None,
    "right": [[True] * 23, [True] * 15 + [False] * 8],
    "left": [[False] * 6 + [True] * 17, [True] * 23],
    "holes": [[True, False] * 11 + [True], [False] * 23],
}
LLN: dict[str, Any] = {"is_causal": True, "frame_size": 5}


def tensors(dtype: torch.dtype = torch.float32, length: int = 23) -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    shapes = [(2, 4, length, 6), (2, 2, length, 6), (2, 2, length, 7), (2, 4, 1, 6), (2, 2, 1, 6)]
    q, k, v, alpha, beta = (torch.randn(shape, generator=draw).to(dtype) for shape in shapes)
    return [2 * q, 3 * k, v, 1 + alpha.abs(), 1 + beta.abs()]


def frames(mask: Tensor | None, length: int, size: int) -> Tensor:
    """(B or 1, N): the frame of each position, counted from the first key that counts."""
    first = torch.zeros(1, 1, dtype=torch.long) if mask is None else mask.int().argmax(dim=1, keepdim=True)
    return torch.div(torch.arange(length)[None] - first, size, rounding_mode="floor")


def literally(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, mask: Tensor | None, size: int) -> Tensor:
    """eq. 8 with the pairs of frames that may see each other, in the inputs' dtype."""
    x = Operands(q, k, v, alpha[:, :, 0], beta[:, :, 0], key_mask=mask)
    a = alpha * q
    b = (beta * (k if mask is None else torch.where(mask[:, None, :, None], k, 0.0))).repeat_interleave(2, dim=1)
    scores = oracle._scores(a, b)
    own = frames(mask, x.k.shape[2], size)
    seen = (own[:, :, None] >= own[:, None, :]) & (own >= 0)[:, :, None]
    if mask is not None:
        seen = seen & mask[:, None, :]
    values = v if mask is None else torch.where(mask[:, None, :, None], v, 0.0)
    return masked_softmax(scores, seen[:, None].expand_as(scores)) @ values.repeat_interleave(2, dim=1)


def assert_as_good(actual: Tensor, plain: Tensor, true: Tensor, factor: float) -> None:
    allowed = factor * float((plain.double() - true).abs().max())
    allowed += UNITS_IN_LAST_PLACE * torch.finfo(actual.dtype).eps * float(true.abs().max())
    assert float((actual.double() - true).abs().max()) <= allowed


@every_backend_name
@pytest.mark.parametrize("mask", MASKS)
def test_outputs_and_gradients_are_those_of_the_matrix(backend: str, mask: str) -> None:
    given = None if MASKS[mask] is None else torch.tensor(MASKS[mask])
    results = []
    for dtype, function in (
        (torch.float64, literally),
        (torch.float32, literally),
        (torch.float32, lambda *x: lln.lln_attention(*x[:5], key_mask=x[5], backend=backend, **LLN)),
    ):
        leaves = [x.requires_grad_() for x in tensors(dtype)]
        out = function(*leaves, given, 5)
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(4)).to(dtype)
        results.append((out.detach(), torch.autograd.grad(out, leaves, upstream)))
    (true, true_gradients), (plain, plain_gradients), (out, gradients) = results
    assert_as_good(out, plain, true, OUTPUT_FACTOR)
    for found, own, wanted in zip(gradients, plain_gradients, true_gradients, strict=True):
        assert_as_good(found, own, wanted, GRADIENT_FACTOR)


def test_frames_of_one_position_are_causal_and_one_frame_is_bidirectional() -> None:
    q, k, v, alpha, beta = tensors(torch.float64)
    causal = lln.lln_attention(q, k, v, alpha, beta, is_causal=True)
    torch.testing.assert_close(lln.lln_attention(q, k, v, alpha, beta, is_causal=True, frame_size=1), causal)
    both = lln.lln_attention(q, k, v, alpha, beta)
    assert torch.equal(lln.lln_attention(q, k, v, alpha, beta, is_causal=True, frame_size=23), both)


def test_a_later_frame_changes_no_bit_of_an_earlier_one() -> None:
    q, k, v, alpha, beta = tensors()
    before = lln.lln_attention(q, k, v, alpha, beta, **LLN)
    k[:, :, 10:], v[:, :, 10:] = 50.0, torch.nan
    assert torch.equal(lln.lln_attention(q, k, v, alpha, beta, **LLN)[:, :, :10], before[:, :, :10])


@pytest.mark.parametrize("diag", [False, True], ids=["lln", "lln+diag"])
def test_a_video_frame_by_frame_with_a_state(diag: bool) -> None:
    q, k, v, alpha, beta = tensors()
    options: dict[str, Any] = {"block_size": 5} if diag else {}
    attend: Any = lln.lln_diag_attention if diag else lln.lln_attention
    whole = attend(q, k, v, alpha, beta, **LLN, **options)
    state, rows = None, []
    for at in (slice(0, 10), slice(10, 15), slice(15, 23)):
        part = (x[:, :, at] for x in (q, k, v))
        out, state = attend(*part, alpha, beta, state=state, return_state=True, **LLN, **options)
        rows.append(out)
    torch.testing.assert_close(torch.cat(rows, dim=2), whole)


@pytest.mark.parametrize("mask", MASKS)
def test_blocks_of_lln_diag_lie_inside_of_frames(mask: str) -> None:
    given = None if MASKS[mask] is None else torch.tensor(MASKS[mask])
    q, k, v, alpha, beta = tensors(torch.float64)
    options: dict[str, Any] = {"is_causal": True, "frame_size": 6, "key_mask": given}
    found = lln.lln_diag_attention(q, k, v, alpha, beta, block_size=3, mix=0.3, **options)
    far = lln.lln_attention(q, k, v, alpha, beta, **options)
    near = lln.block_diagonal_attention(q, k, v, block_size=3, key_mask=given)
    torch.testing.assert_close(found, 0.3 * far + 0.7 * near)


def test_a_layer_over_frames_decodes_frame_by_frame() -> None:
    layer = lln.LLNAttention(
        12, 2, causal=True, frame_size=4, matching="fixed", matching_options={"alpha": 1.0, "beta": 1.0}
    )
    x = torch.randn(1, 8, 12)
    whole, _ = layer(x)
    first, state = layer(x[:, :4], return_state=True)
    second, _ = layer(x[:, 4:], state=state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    with pytest.raises(ValueError, match="weights of attention over frames"):
        layer(x, need_weights=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frame_size": 4}, "needs is_causal=True"),
        ({"frame_size": 0, "is_causal": True}, "at least 1, got 0"),
        ({"frame_size": 4, "is_causal": True, "cu_seqlens": torch.tensor([0, 23])}, "packed sequences have no frames"),
    ],
)
def test_what_has_no_frames_is_refused(options: dict[str, Any], message: str) -> None:
    q, k, v, _, _ = tensors()
    with pytest.raises(ValueError, match=message):
        lln.lln_attention(q[:1], k[:1], v[:1], 1.0, 1.0, **options)
    with pytest.raises(ValueError, match="multiple of block_size, got 4 and 3"):
        lln.lln_diag_attention(q, k, v, 1.0, 1.0, is_causal=True, frame_size=4, block_size=3)
