"""The recurrent state: prefill in pieces, single steps, beams, saving, and what is refused."""

import dataclasses
import io
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lln import LLNState, lln_attention, lln_diag_attention
from tests.ops.subjects import every_backend_name as every_backend

KINDS = {"lln": (lln_attention, {}), "lln_diag": (lln_diag_attention, {"block_size": 16})}
either_kind = pytest.mark.parametrize("kind", KINDS)


def inputs(length: int = 60, sigma: float = 1.0, batch: int = 2) -> list[Tensor]:
    return [
        torch.randn(batch, 4, length, 8) * sigma,
        torch.randn(batch, 2, length, 8) * sigma,
        torch.randn(batch, 2, length, 5),
    ]


def attend(kind: str, q: Tensor, k: Tensor, v: Tensor, **options):
    function, own = KINDS[kind]
    return function(q, k, v, 2.0, 1.5, is_causal=True, **own, **options)


def in_pieces(kind: str, tensors: list[Tensor], sizes: list[int], mask: Tensor | None = None, **options) -> Tensor:
    state, outputs, start = None, [], 0
    for size in sizes:
        at = slice(start, start + size)
        out, state = attend(
            kind, *(x[:, :, at] for x in tensors), state=state, return_state=True,
            key_mask=None if mask is None else mask[:, at], **options,
        )  # fmt: skip
        outputs.append(out)
        start += size
    return torch.cat(outputs, dim=2)


@every_backend
@either_kind
@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    sigma=st.sampled_from((0.1, 1.0, 16.0)),
    padding=st.sampled_from(("none", "left", "holes")),
    seed=st.integers(0, 100),
)
def test_prefill_in_pieces_equals_the_whole(backend, kind, sizes, sigma, padding, seed) -> None:
    torch.manual_seed(seed)
    length = sum(sizes)
    tensors = inputs(length, sigma)
    mask = None
    if padding == "left":
        mask = torch.arange(length) >= torch.randint(0, length + 1, (2, 1))
    elif padding == "holes":
        mask = torch.rand(2, length) < 0.5
    whole = attend(kind, *tensors, key_mask=mask, backend=backend)
    pieces = in_pieces(kind, tensors, sizes, mask, backend=backend)
    torch.testing.assert_close(pieces, whole, atol=2e-5 if sigma > 1 else 4e-6, rtol=0)


@every_backend
@either_kind
def test_single_steps_equal_the_whole(backend: str, kind: str) -> None:
    tensors = inputs(70)
    whole = attend(kind, *tensors, backend=backend)
    torch.testing.assert_close(in_pieces(kind, tensors, [30] + [1] * 40, backend=backend), whole, atol=4e-6, rtol=0)


@every_backend
@either_kind
def test_the_size_of_the_state_does_not_depend_on_the_length(backend: str, kind: str) -> None:
    sizes = {attend(kind, *inputs(n), return_state=True, backend=backend)[1].nbytes() for n in (1, 17, 64, 500)}
    assert len(sizes) == 1


@either_kind
def test_beams_reorder_and_repeat_the_state(kind: str) -> None:
    tensors = inputs(50)
    _, state = attend(kind, *(x[:, :, :30] for x in tensors), return_state=True)
    order = torch.tensor([1, 1, 0])
    beams = attend(kind, *(x[order][:, :, 30:] for x in tensors), state=state.select(order))
    torch.testing.assert_close(beams, attend(kind, *tensors)[order][:, :, 30:], atol=4e-6, rtol=0)
    repeated = state.repeat_interleave(2)
    assert torch.equal(repeated.summed, state.select(torch.tensor([0, 0, 1, 1])).summed)


@either_kind
def test_a_state_can_be_saved_and_loaded(kind: str) -> None:
    tensors = inputs(50)
    _, state = attend(kind, *(x[:, :, :30] for x in tensors), return_state=True)
    file = io.BytesIO()
    torch.save(state.state_dict(), file)
    file.seek(0)
    loaded = LLNState.load(torch.load(file, weights_only=True)).to("cpu").clone()
    rest = [x[:, :, 30:] for x in tensors]
    assert torch.equal(attend(kind, *rest, state=loaded), attend(kind, *rest, state=state))


def test_a_state_of_another_version_is_refused() -> None:
    _, state = attend("lln", *inputs(), return_state=True)
    with pytest.raises(ValueError, match="version 99; this release reads version 1"):
        LLNState.load(state.state_dict() | {"version": torch.tensor(99)})
    without = {name: x for name, x in state.state_dict().items() if name != "version"}
    with pytest.raises(ValueError, match="version None"):
        LLNState.load(without)


def test_gradients_of_a_piece_take_the_state_as_a_constant() -> None:
    tensors = [x.double() for x in inputs(24)]
    _, state = attend("lln", *(x[:, :, :10] for x in tensors), return_state=True)
    leaves = [x[:, :, 10:].detach().requires_grad_() for x in tensors]
    assert torch.autograd.gradcheck(lambda *x: attend("lln", *x, state=state), leaves, fast_mode=True)
    assert not state.summed.requires_grad


def test_foreign_states_are_refused_in_words() -> None:
    q, k, v = inputs()
    _, state = lln_attention(q, k, v, 2.0, 1.5, is_causal=True, return_state=True)
    _, blocks = lln_diag_attention(q, k, v, 2.0, 1.5, block_size=16, is_causal=True, return_state=True)
    with pytest.raises(ValueError, match="made with another alpha"):
        lln_attention(q, k, v, 2.1, 1.5, is_causal=True, state=state)
    with pytest.raises(ValueError, match="made with another beta"):
        lln_attention(q, k, v, 2.0, 1.0, is_causal=True, state=state)
    with pytest.raises(ValueError, match="with block size 16; this call is by lln_diag_attention with block size 32"):
        lln_diag_attention(q, k, v, 2.0, 1.5, block_size=32, is_causal=True, state=blocks)
    with pytest.raises(ValueError, match="by lln_attention, without blocks; this call is by lln_diag_attention"):
        lln_diag_attention(q, k, v, 2.0, 1.5, is_causal=True, state=state)
    with pytest.raises(ValueError, match="this call is by lln_attention"):
        lln_attention(q, k, v, 2.0, 1.5, is_causal=True, state=blocks)
    with pytest.raises(ValueError, match=r"= \(2, 2, 8, 5\), these inputs have \(1, 2, 8, 5\)"):
        lln_attention(q[:1], k[:1], v[:1], 2.0, 1.5, is_causal=True, state=state)
    with pytest.raises(ValueError, match="maximum of the state must be torch.float64"):
        lln_attention(q.double(), k.double(), v.double(), 2.0, 1.5, is_causal=True, state=state)


def with_changed(state: LLNState, name: str, change: Any) -> LLNState:
    """The state with one of its tensors changed; `block.keys` is the block's."""
    if name.startswith("block."):
        own = name.removeprefix("block.")
        return dataclasses.replace(
            state, block=dataclasses.replace(state.block, **{own: change(getattr(state.block, own))})
        )
    return dataclasses.replace(state, **{name: change(getattr(state, name))})


TENSORS = {"lln": ("maximum", "summed", "normaliser", "alpha", "beta")}
TENSORS["lln_diag"] = (*TENSORS["lln"], *(f"block.{x}" for x in ("keys", "values", "counts", "filled", "started")))
DAMAGE = {
    "another dtype": lambda x: x.half() if x.dtype.is_floating_point else x.to(torch.int32),
    "a dimension less": lambda x: x[0],
    "fewer samples": lambda x: x[:1],
    "a flat copy": lambda x: x.flatten(),
    "nothing in it": lambda x: x[:0],
    "another device": lambda x: x.to("meta"),
}


@every_backend
@either_kind
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_state_with_any_tensor_of_another_form_is_refused(backend: str, kind: str, damage: str) -> None:
    tensors = inputs(20)
    _, state = attend(kind, *tensors, return_state=True, backend=backend)
    for length in (1, 20):
        for name in TENSORS[kind]:
            if damage == "a flat copy" and name in ("block.filled", "block.started"):
                continue  # they are flat
            damaged = with_changed(state, name, DAMAGE[damage])
            with pytest.raises(ValueError, match=r"state"):
                attend(kind, *(x[:, :, :length] for x in tensors), state=damaged, backend=backend)


@pytest.mark.parametrize("filled", [-1, 16, 10**9])
def test_a_block_that_holds_more_than_it_has_room_for_is_refused(filled: int) -> None:
    tensors = inputs(20)
    _, state = attend("lln_diag", *tensors, return_state=True)
    damaged = with_changed(state, "block.filled", lambda x: torch.tensor([0, filled]))
    with pytest.raises(ValueError, match=rf"must be from 0 to 15, got \[0, {filled}\]"):
        attend("lln_diag", *tensors, state=damaged)


def test_a_state_of_another_form_is_refused_in_a_compiled_graph() -> None:
    tensors = inputs(20)
    _, state = attend("lln", *tensors, return_state=True)
    compiled = torch.compile(
        lambda q, k, v, state: attend("lln", q, k, v, state=state), fullgraph=True, backend="eager"
    )
    torch.testing.assert_close(compiled(*tensors, state), attend("lln", *tensors, state=state))
    for damaged in (with_changed(state, "normaliser", lambda x: x[:1]), with_changed(state, "maximum", Tensor.half)):
        with pytest.raises(Exception, match="of the state must|these inputs need"):
            compiled(*tensors, damaged)


def test_a_saved_state_with_other_names_is_refused() -> None:
    for kind in KINDS:
        _, state = attend(kind, *inputs(), return_state=True)
        saved = state.state_dict()
        gone = "block.filled" if kind == "lln_diag" else "maximum"
        with pytest.raises(ValueError, match="a state has .*filled|a state has .*maximum"):
            LLNState.load({name: x for name, x in saved.items() if name != gone})
        with pytest.raises(ValueError, match="got .*colour"):
            LLNState.load(saved | {"colour": torch.zeros(1)})
