"""Maps of q and k: folded ones leave softmax unchanged and cost nothing, others are refused where they would not."""

from typing import Any

import pytest
import torch

from lln.hf import unload
from lln.hf.distil import distil
from lln.hf.maps import TiedParameters, converted_modules, fold, make_room
from tests.hf.models import inputs, output
from tests.hf.test_distil import converted, softmax_model


def _with_random_maps(family: str) -> Any:
    """A model whose tied maps are far from the identity, not folded yet."""
    model = converted(family)
    make_room(model, "folded")
    generator = torch.Generator().manual_seed(3)
    for module in converted_modules(model):
        own = module.lln
        own.set(key_map=own.key_map + 0.3 * torch.randn(own.key_map.shape, generator=generator))
    return model


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "vit"])
def test_folding_does_not_change_the_model(family: str) -> None:
    model = _with_random_maps(family).double()
    given = {n: x.double() if x.is_floating_point() else x for n, x in inputs(family).items()}
    with torch.no_grad():
        before = output(model, **given)
        fold(model)
        torch.testing.assert_close(output(model, **given), before)
    assert not any(m.lln.shape.maps for m in converted_modules(model))


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_folded_maps_leave_the_softmax_model_unchanged(family: str) -> None:
    original = softmax_model(family)
    model = _with_random_maps(family)
    fold(model)
    unload(model)
    with torch.no_grad():
        torch.testing.assert_close(
            output(model, **inputs(family)), output(original, **inputs(family)), rtol=1e-4, atol=1e-4
        )


def test_maps_change_lln() -> None:
    with torch.no_grad():
        plain, mapped = (output(m, **inputs("bert")) for m in (converted("bert"), _with_random_maps("bert")))
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
    ("family", "message"), [("llama", "rotates q and k"), ("gpt2", "no separate linear projections")]
)
def test_folding_where_it_would_change_softmax_is_refused(family: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_room(converted(family), "folded")


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
