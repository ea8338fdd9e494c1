"""The recurrent state: prefill in pieces, single steps, beams, saving, and what is refused."""

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lln import LLNState, backends, lln_attention, lln_diag_attention

BACKENDS = [name for name in backends.AUTOMATIC if backends.unavailable(name) is None]
every_backend = pytest.mark.parametrize("backend", BACKENDS)
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
            key_padding_mask=None if mask is None else mask[:, at], **options,
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
    whole = attend(kind, *tensors, key_padding_mask=mask, backend=backend)
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
    with pytest.raises(ValueError, match="these inputs need torch.float64"):
        lln_attention(q.double(), k.double(), v.double(), 2.0, 1.5, is_causal=True, state=state)
