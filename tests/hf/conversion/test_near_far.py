"""Converting to near-far attention: weights by least squares, saved with the model, undone exactly, learned on from there."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM

from lln.hf import convert, distil, unload
from lln.hf.attention.call import Call
from lln.hf.attention.functions import attend
from lln.hf.conversion.costly_layers import costs
from lln.hf.conversion.watching import watching
from lln.hf.modules import attention_modules
from lln.near_far import NEUTRAL
from tests.hf.models import CAUSAL, inputs, make, output

NEAR: dict[str, Any] = {"block_size": 4, "neighbours": 1, "first_tokens": 2}
families = pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "vit"])


def softmax_model(family: str) -> Any:
    model = make(family, "sdpa")
    del model.config.lln
    return model


def converted(family: str = "bert", **options: Any) -> Any:
    return convert(softmax_model(family), "lln_near_far", [inputs(family, length=40)], **{**NEAR, **options})


def errors(model: Any, given: dict[str, Tensor]) -> list[float]:
    """|o - t|^2 / |t|^2 of each attention on the softmax model's own activations."""
    found = []

    def watch(call: Call, out: Tensor) -> None:
        own = attend(call, "lln_near_far")[0]
        found.append(float((own - out).square().sum() / out.square().sum()))

    with watching(model, watch), torch.no_grad():
        model(**given)
    return found


@families
def test_fitted_weights_are_nearer_to_softmax_than_neutral_ones(family: str) -> None:
    given = inputs(family, length=40)
    fitted, neutral = (errors(converted(family, fit=fit), given) for fit in (True, False))
    assert all(a < b for a, b in zip(fitted, neutral, strict=True)), (fitted, neutral)


def test_the_error_that_is_told_is_the_error() -> None:
    model = converted("llama")
    told = [float(m.lln.fit_error.mean()) for m in attention_modules(model)]
    assert all(0 < x < 1 for x in told)
    # over heads of unlike power a mean of ratios is not the ratio of sums: within a factor of two
    for mean, whole in zip(told, errors(model, inputs("llama", length=40)), strict=True):
        assert mean / 2 < whole < 2 * mean


@families
def test_a_converted_model_is_restored_with_its_weights(family: str, tmp_path: Any) -> None:
    model = converted(family)
    model.save_pretrained(tmp_path)
    loaded = (AutoModelForCausalLM if family in CAUSAL else AutoModel).from_pretrained(tmp_path).eval()
    assert loaded.config._attn_implementation == "lln_near_far"
    own, others = ([m.lln.weights for m in attention_modules(x)] for x in (model, loaded))
    assert all(torch.equal(a, b) for a, b in zip(own, others, strict=True))
    assert not torch.equal(own[0], torch.tensor(NEUTRAL).expand_as(own[0]))
    with torch.no_grad():
        assert torch.equal(output(loaded, **inputs(family)), output(model, **inputs(family)))


@families
def test_unload_gives_the_softmax_back_bit_for_bit(family: str) -> None:
    model = softmax_model(family)
    names = set(model.state_dict())
    with torch.no_grad():
        before = output(model, **inputs(family))
        convert(model, "lln_near_far", [inputs(family)], "auto", **NEAR)
        assert not torch.equal(output(model, **inputs(family)), before)
        assert torch.equal(output(unload(model), **inputs(family)), before)
    assert set(model.state_dict()) == names and not hasattr(model.config, "lln")


def test_padding_has_no_influence_on_the_fit() -> None:
    ids = inputs("bert", batch=2, length=30)["input_ids"]
    mask = torch.ones_like(ids)
    mask[:, 20:] = 0
    weights = []
    for given in ({"input_ids": ids, "attention_mask": mask}, {"input_ids": ids[:, :20]}):
        model = convert(softmax_model("bert"), "lln_near_far", [given], **NEAR)
        weights.append(torch.stack([m.lln.weights for m in attention_modules(model)]))
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-3)


def test_without_data_each_sample_is_matched_and_the_weights_are_those_of_the_config(tmp_path: Any) -> None:
    model = softmax_model("bert")
    model.config.lln = {"weights": [0.0, 0.0, 1.0, 1.0]}
    convert(model, "lln_near_far", **NEAR).save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path).eval()
    assert loaded.config.lln["weights"] == [0.0, 0.0, 1.0, 1.0]
    with torch.no_grad():
        assert torch.equal(output(loaded, **inputs("bert")), output(model, **inputs("bert")))


def spoil(module: nn.Module) -> None:
    """Weights with which an attention is far from softmax."""
    module.lln.set(weights=torch.tensor([3.0, 3.0, 3.0, 3.0]).expand(4, 4))  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("family", ["bert", "llama"])
@pytest.mark.parametrize("spoilt", [0, 1])
def test_the_costliest_layer_is_the_one_that_is_worst(family: str, spoilt: int) -> None:
    model = converted(family)
    spoil(attention_modules(model)[spoilt])
    found = costs(model, [inputs(family, length=40)])
    assert found[spoilt] > 2 * found[1 - spoilt]


def test_auto_keeps_the_costliest_layer_softmax_and_saves_it_so(tmp_path: Any) -> None:
    model = softmax_model("llama")
    convert(model, "lln_near_far", [inputs("llama", length=40)], "auto", softmax_layers=1, **NEAR)
    kept = [getattr(m, "lln", None) is None for m in attention_modules(model)]
    every = converted("llama")
    found = costs(every, [inputs("llama", length=40)])
    assert kept == [x == max(found) for x in found]
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(output(loaded, **inputs("llama")), output(model, **inputs("llama")))


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_distillation_learns_the_weights_and_folds_its_maps(family: str) -> None:
    model, found = converted(family), []
    for module in attention_modules(model):
        module.lln.set(weights=torch.full((4, 4), 0.3))
    before = [m.lln.weights.clone() for m in attention_modules(model)]
    distil(
        model, [inputs(family, length=40)], steps=16, stage="layers", progress=False,
        on_step=lambda _, __, errors: found.append(sum(errors)),
    )  # fmt: skip
    assert found[-1] < 0.5 * found[0]
    assert all(not torch.equal(a, m.lln.weights) for a, m in zip(before, attention_modules(model), strict=True))
    assert not any(m.lln.shape.maps for m in attention_modules(model))  # folded


def test_what_does_not_fit_is_refused_in_words() -> None:
    model = softmax_model("bert")
    with pytest.raises(ValueError, match="keep_softmax must be numbers of attention modules or 'auto', got 'some'"):
        convert(model, "lln_near_far", [inputs("bert")], "some")
    with pytest.raises(ValueError, match="softmax_layers is how many layers keep_softmax='auto' keeps"):
        convert(model, "lln_near_far", [inputs("bert")], softmax_layers=1)
    with pytest.raises(ValueError, match="leave a layer to convert, of which there are 2, got 2"):
        convert(model, "lln_near_far", [inputs("bert")], "auto", softmax_layers=2, **NEAR)
    assert not hasattr(model.config, "lln")
    with pytest.raises(ValueError, match="maps of near-far attention are tied"):
        convert(model, "lln_near_far", [inputs("bert")], maps=True)
    with pytest.warns(UserWarning, match="all keys are near"):
        convert(model, "lln_near_far", [inputs("bert")], block_size=64)
    with pytest.raises(ValueError, match="its maps are 'folded', or None"):
        distil(model, [inputs("bert")], maps="free")
    model.set_attn_implementation("lln_diag")
    with pytest.raises(ValueError, match="converted with weights for each head, but lln_diag needs a mixing"):
        output(model, **inputs("bert"))
