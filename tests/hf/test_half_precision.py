"""Models in bfloat16: as close to their float32 selves as softmax models are, through padding, cache and conversion."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

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
        found.append([module.lln for module in lln.hf.distillation.maps.converted_modules(model)])
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("family", ["bert", "modernbert", "llama", "gpt2"])
def test_a_reload_in_half_precision_changes_no_bit(family: str, maps: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """The weights are rounded, what LLN measured is not: alpha that bfloat16 would round is float32 before and after."""
    kind = AutoModelForCausalLM if family in CAUSAL else AutoModel
    softmax = make(family, "sdpa")
    del softmax.config.lln
    softmax.save_pretrained(tmp_path / "softmax")
    # loaded, since a cast of the whole model would round the frequencies of rotary positions too, and reloading would not
    model = kind.from_pretrained(tmp_path / "softmax", dtype=dtype).eval()
    convert(model, calibrate=[inputs(family)], block_size=8, maps=maps)
    before = {name: x for name, x in model.state_dict().items() if ".lln." in name}
    assert before and all(x.dtype == torch.float32 for x in before.values())
    assert any(not torch.equal(x, x.to(dtype).float()) for x in before.values())
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        wanted = output(model, **inputs(family))
        for asked in (dtype, "auto"):
            loaded = kind.from_pretrained(tmp_path, dtype=asked).eval()
            assert loaded.dtype == dtype
            for name, x in loaded.state_dict().items():
                assert ".lln." not in name or torch.equal(x, before[name]), name
            assert torch.equal(output(loaded, **inputs(family)), wanted)


def test_casting_keeps_what_lln_measured() -> None:
    model = make("bert", "sdpa")
    del model.config.lln
    convert(model, calibrate=[inputs("bert")], block_size=8)
    before = [x.clone() for x in lln.hf.distillation.maps.converted_modules(model)[0].lln.parameters()]
    for cast in (model.half, model.bfloat16, lambda: model.to(HALF), lambda: model.to("cpu", torch.float16)):
        cast()
        for own, x in zip(lln.hf.distillation.maps.converted_modules(model)[0].lln.parameters(), before, strict=True):
            assert own.dtype == torch.float32 and torch.equal(own, x)
    assert all(x.dtype == torch.float64 for x in model.double().parameters())


def test_folders_with_rounded_parameters_load_as_they_were(tmp_path: Path) -> None:
    """The release before saved alpha in bfloat16 where the model was: the same values, now held in float32."""
    from safetensors.torch import load_file, save_file

    model = make("bert", "sdpa")
    del model.config.lln
    convert(model, calibrate=[inputs("bert")], block_size=8).to(HALF).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    rounded = {name: x.to(HALF) for name, x in load_file(file).items()}
    save_file(rounded, file, metadata={"format": "pt"})
    for name, x in AutoModel.from_pretrained(tmp_path).state_dict().items():
        assert ".lln." not in name or (x.dtype == torch.float32 and torch.equal(x, rounded[name].float())), name
