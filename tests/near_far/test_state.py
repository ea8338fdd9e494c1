"""The decoding state of near-far attention: any pieces give the whole, in a size that does not depend on the length."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from lln.near_far import NearFarState, near_far_attention

LENGTH = 45
TOKENS = tuple(range(1, LENGTH))
every_reach = pytest.mark.parametrize(
    "reach",
    [
        {"block_size": 8},
        {"block_size": 1},
        {"block_size": 4, "neighbours": 2, "first_tokens": 3},
        {"block_size": 4, "first_tokens": 9},
        {"block_size": 64, "neighbours": 1},
    ],
    ids=str,
)


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(2, 4, LENGTH, 6, dtype=dtype)
    return q, torch.randn(2, 2, LENGTH, 6, dtype=dtype), torch.randn(2, 2, LENGTH, 5, dtype=dtype)


def options(reach: dict[str, int]) -> dict[str, Any]:
    weights = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return {"alpha": 1.1, "beta": 0.9, "weights": weights, "is_causal": True, **reach}


def in_pieces(
    q: Tensor, k: Tensor, v: Tensor, cuts: tuple[int, ...], mask: Tensor | None = None, **given: Any
) -> tuple[Tensor, NearFarState]:
    state, rows = None, []
    for start, stop in pairwise((0, *cuts, q.shape[2])):
        piece = (t[:, :, start:stop] for t in (q, k, v))
        own = None if mask is None else mask[:, start:stop]
        out, state = near_far_attention(*piece, key_mask=own, state=state, return_state=True, **given)
        rows.append(out)
    assert state is not None
    return torch.cat(rows, dim=2), state


@every_reach
@pytest.mark.parametrize(
    "cuts", [TOKENS, (), (7, 8, 20, 31), (5, 6, 7, 8, 9, 30)], ids=["tokens", "one", "few", "mixed"]
)
@pytest.mark.parametrize("mask", ["none", "left", "holes"])
def test_pieces_are_the_whole(reach: dict[str, int], cuts: tuple[int, ...], mask: str) -> None:
    q, k, v = inputs()
    masks = {
        "none": None,
        "left": torch.arange(LENGTH) >= torch.tensor([[11], [3]]),
        "holes": torch.rand(2, LENGTH) < 0.5,
    }
    counts = masks[mask]
    whole = near_far_attention(q, k, v, key_mask=counts, **options(reach))
    found, _ = in_pieces(q, k, v, cuts, counts, **options(reach))
    torch.testing.assert_close(found, whole, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tokens_are_the_whole_in_every_dtype(dtype: torch.dtype) -> None:
    q, k, v = inputs(dtype)
    given = options({"block_size": 4, "neighbours": 1, "first_tokens": 3})
    found, _ = in_pieces(q, k, v, TOKENS, **given)
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(found, near_far_attention(q, k, v, **given), atol=8 * unit, rtol=8 * unit)


@pytest.mark.parametrize("cuts", [TOKENS, (7, 8, 20, 31)], ids=["tokens", "few"])
def test_gradients_through_the_state_are_those_of_the_whole(cuts: tuple[int, ...]) -> None:
    given = options({"block_size": 4, "neighbours": 1, "first_tokens": 3})
    leaves = [t.requires_grad_() for t in inputs()]
    whole = torch.autograd.grad(near_far_attention(*leaves, **given).square().sum(), leaves)
    found = torch.autograd.grad(in_pieces(*leaves, cuts, **given)[0].square().sum(), leaves)
    for a, b in zip(found, whole, strict=True):
        torch.testing.assert_close(a, b)


@every_reach
def test_the_size_does_not_depend_on_the_length(reach: dict[str, int]) -> None:
    q, k, v = inputs()
    _, short = in_pieces(q[:, :, :5], k[:, :, :5], v[:, :, :5], (), **options(reach))
    _, long = in_pieces(q, k, v, (), **options(reach))
    assert short.nbytes() == long.nbytes()


def test_a_saved_state_goes_on_as_if_nothing_had_happened() -> None:
    q, k, v = inputs()
    given = options({"block_size": 4, "neighbours": 1, "first_tokens": 3})
    whole = near_far_attention(q, k, v, **given)
    _, state = in_pieces(q[:, :, :20], k[:, :, :20], v[:, :, :20], (), **given)
    loaded = NearFarState.load({name: t.clone() for name, t in state.clone().detach().state_dict().items()})
    out = near_far_attention(q[:, :, 20:], k[:, :, 20:], v[:, :, 20:], state=loaded, **given)
    torch.testing.assert_close(out, whole[:, :, 20:])


def test_beams_can_be_reordered_and_repeated() -> None:
    q, k, v = inputs()
    given = options({"block_size": 4, "neighbours": 1, "first_tokens": 3})
    _, state = in_pieces(q[:, :, :20], k[:, :, :20], v[:, :, :20], (), **given)
    token = [t[:, :, 20:21] for t in (q, k, v)]
    out = near_far_attention(*token, state=state, **given)
    swapped = near_far_attention(*(t.flip(0) for t in token), state=state.select(torch.tensor([1, 0])), **given)
    torch.testing.assert_close(swapped, out.flip(0))
    twice = near_far_attention(*(t.repeat_interleave(2, 0) for t in token), state=state.repeat_interleave(2), **given)
    torch.testing.assert_close(twice, out.repeat_interleave(2, 0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_size": 8}, "window_keys of the state must have shape"),
        ({"neighbours": 0}, "window_keys of the state must have shape"),
        ({"first_tokens": 0}, "first_keys of the state must have shape"),
        ({"beta": 1.0}, "another beta"),
        ({"is_causal": False}, "past of causal attention"),
    ],
)
def test_a_state_made_for_something_else_is_refused(change: dict[str, Any], words: str) -> None:
    q, k, v = inputs()
    given = options({"block_size": 4, "neighbours": 1, "first_tokens": 3})
    _, state = in_pieces(q, k, v, (), **given)
    with pytest.raises(ValueError, match=words):
        near_far_attention(q, k, v, state=state, **{**given, **change})


def test_states_of_other_inputs_and_versions_are_refused() -> None:
    q, k, v = inputs()
    given = options({"block_size": 4})
    _, state = in_pieces(q, k, v, (), **given)
    with pytest.raises(ValueError, match="must have shape"):
        near_far_attention(q[:1], k[:1], v[:1], state=state, **given)
    with pytest.raises(ValueError, match="must be torch.float32"):
        near_far_attention(q.float(), k.float(), v.float(), state=state, **given)
    with pytest.raises(ValueError, match="version 7"):
        NearFarState.load(state.state_dict() | {"version": torch.tensor(7)})
    with pytest.raises(ValueError, match="a state has"):
        NearFarState.load({"version": torch.tensor(2)})


def test_windows_of_one_size_that_are_cut_differently_are_refused() -> None:
    q, k, v = inputs()
    of_two = {"block_size": 4, "neighbours": 1, "first_tokens": 0}
    _, state = near_far_attention(q, k, v, 0.7, 0.8, is_causal=True, return_state=True, **of_two)
    with pytest.raises(ValueError, match=r"window_counts of the state must have shape \(\d+, 1, 8\)"):
        near_far_attention(q, k, v, is_causal=True, state=state, block_size=8)
