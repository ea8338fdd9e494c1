"""Models in bfloat16: as close to their float32 selves as softmax models are, through padding, cache and conversion."""

from typing import Any

import pytest
import torch
from transformers import AutoModel

import lln.hf
from lln.hf import convert
from tests.hf.models import CAUSAL, FAMILIES, inputs, make, output

HALF = torch.bfloat16


def rounded(family: str, attention: str) -> tuple[Any, Any]:
    """The same weights twice, exact in bfloat16: a model that computes in float32 and one that does in bfloat16."""
    half = make(family, attention).to(HALF)
    return make(family, attention).to(HALF).float(), half


def half_inputs(family: str, **sizes: int) -> dict[str, torch.Tensor]:
    return {n: x.to(HALF) if x.is_floating_point() else x for n, x in inputs(family, **sizes).items()}


@torch.no_grad()
def error(family: str, attention: str) -> float:
    """Root of the mean squared error of the bfloat16 model, over the output's."""
    whole, half = rounded(family, attention)
    given = half_inputs(family)
    wanted = output(whole, **{n: x.float() if x.is_floating_point() else x for n, x in given.items()})
    found = output(half, **given)
    assert found.dtype == HALF
    return float((found.float() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("attention", ["lln", "lln_diag"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rounding_costs_no_more_than_it_costs_softmax(family: str, attention: str) -> None:
    assert error(family, attention) <= 2 * error(family, "sdpa")


@pytest.mark.parametrize("family", CAUSAL)
def test_the_cache_changes_nothing_but_rounding(family: str) -> None:
    model = make(family).to(HALF)
    ids = inputs(family, batch=2, length=24)["input_ids"]
    cache = lln.hf.LLNCache.of(model)
    with torch.no_grad():
        whole = output(model, input_ids=ids)
        pieces = [model(x, past_key_values=cache, use_cache=True).logits for x in ids.split((11, 1, 12), dim=1)]
    difference = (torch.cat(pieces, 1) - whole).float().norm() / whole.float().norm()
    assert difference <= 2 * error(family, "sdpa")


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_half_model_is_converted_as_its_float32_self(family: str) -> None:
    found = []
    for model in rounded(family, "sdpa"):
        del model.config.lln
        convert(model, calibrate=[inputs(family)], block_size=8)
        found.append([module.lln for module in lln.hf.maps.converted_modules(model)])
    for whole, half in zip(*found, strict=True):
        torch.testing.assert_close(half.mix.float(), whole.mix, rtol=0, atol=0.03)
        torch.testing.assert_close(half.fit_error.float(), whole.fit_error.float(), rtol=0.1, atol=0.01)


def test_a_converted_model_is_saved_and_loaded_in_half_precision(tmp_path: Any) -> None:
    model = make("bert", "sdpa")
    del model.config.lln
    model = convert(model, calibrate=[inputs("bert")], block_size=8).to(HALF)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, dtype=HALF).eval()
    with torch.no_grad():
        assert torch.equal(output(loaded, **inputs("bert")), output(model, **inputs("bert")))
