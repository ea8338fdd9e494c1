"""Maps of q and k: folded ones leave softmax unchanged and cost nothing, others are refused where they would not."""

from typing import Any

import pytest
import torch

from lln.hf import unload
from lln.hf.distillation.distil import distil
from lln.hf.distillation.maps import RotaryTiedParameters, TiedParameters, converted_modules, fold, make_room
from tests.hf.distillation.test_distil import converted, softmax_model
from tests.hf.models import inputs, output


def _with_random_maps(family: str) -> Any:
    """A model whose tied maps are far from the identity, not folded yet."""
    model = converted(family)
    make_room(model, "folded")
    generator = torch.Generator().manual_seed(3)
    for module in converted_modules(model):
        own = module.lln
        own.set(key_map=own.key_map + 0.3 * torch.randn(own.key_map.shape, generator=generator))
    return model


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "vit", "llama", "qwen2"])
def test_folding_does_not_change_the_model(family: str) -> None:
    model = _with_random_maps(family).double()
    given = {n: x.double() if x.is_floating_point() else x for n, x in inputs(family).items()}
    with torch.no_grad():
        before = output(model, **given)
        fold(model)
        torch.testing.assert_close(output(model, **given), before)
    assert not any(m.lln.shape.maps for m in converted_modules(model))


@pytest.mark.parametrize("family", ["bert", "vit", "llama", "qwen2"])
def test_folded_maps_leave_the_softmax_model_unchanged(family: str) -> None:
    original = softmax_model(family)
    model = _with_random_maps(family)
    fold(model)
    unload(model)
    with torch.no_grad():
        torch.testing.assert_close(
            output(model, **inputs(family)), output(original, **inputs(family)), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_maps_change_lln(family: str) -> None:
    with torch.no_grad():
        plain, mapped = (output(m, **inputs(family)) for m in (converted(family), _with_random_maps(family)))
    assert (plain - mapped).abs().max() > 1e-2


def test_the_query_map_is_the_inverse_transpose_of_its_key_heads_map() -> None:
    model = _with_random_maps("bert")
    own = converted_modules(model)[0].lln
    assert isinstance(own, TiedParameters)
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 6, 8)
    torch.testing.assert_close(own.map_queries(q) @ own.map_keys(k).mT, q @ k.mT, rtol=1e-3, atol=1e-4)


def test_distilled_folded_maps_cost_nothing_and_unload_to_the_original() -> None:
    original = softmax_model("bert")
    model = distil(converted("bert"), [inputs("bert")], steps=9, maps="folded", progress=False)
    assert not any(m.lln.shape.maps for m in converted_modules(model))
    unload(model)
    with torch.no_grad():
        torch.testing.assert_close(
            output(model, **inputs("bert")), output(original, **inputs("bert")), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize(
    ("family", "message"), [("qwen3", "normalises q and k"), ("gpt2", "no separate linear projections")]
)
def test_folding_where_it_would_change_softmax_is_refused(family: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_room(converted(family), "folded")


def test_rotations_that_are_not_of_halves_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def interleaved(x: torch.Tensor) -> torch.Tensor:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)

    monkeypatch.setattr("transformers.models.llama.modeling_llama.rotate_half", interleaved)
    with pytest.raises(ValueError, match="rotates q and k in another way"):
        make_room(converted("llama"), "folded")


def test_a_map_of_rotated_keys_is_a_complex_number_for_each_frequency() -> None:
    own = converted_modules(_with_random_maps("llama"))[0].lln
    assert isinstance(own, RotaryTiedParameters)
    k = torch.randn(2, own.shape.key_heads, 5, own.shape.head_dim)
    as_complex = torch.complex(*k.chunk(2, dim=-1))
    a = own.matrix().diagonal(0, -2, -1)[:, : own.shape.head_dim // 2]
    b = own.matrix().diagonal(own.shape.head_dim // 2, -2, -1)
    expected = as_complex * torch.complex(a, b)[:, None]
    torch.testing.assert_close(own.map_keys(k), torch.cat([expected.real, expected.imag], dim=-1))


def test_free_maps_cannot_be_folded_afterwards() -> None:
    model = converted("bert", maps=True)
    with pytest.raises(ValueError, match="has free maps already"):
        make_room(model, "folded")


def test_making_room_does_not_change_the_model() -> None:
    model = converted("bert")
    with torch.no_grad():
        before = output(model, **inputs("bert"))
        make_room(model, "free")
        torch.testing.assert_close(output(model, **inputs("bert")), before)
