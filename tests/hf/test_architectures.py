"""62 architectures and more, each with both attentions: right, or refused in words. There is no third way.

Right means: finite outputs and gradients, samples that do not see each other, padding that changes nothing, generate() with a
cache as without, save and load, convert and unload.
"""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import lln.hf
from lln.hf import convert, unload
from tests.hf.architectures import FURTHER, FURTHER_REFUSED, REFUSED, RIGHT, Given, answer, given, make

lln.hf.register()
ATTENTIONS = ("lln_diag", "lln")
TAKEN = {**RIGHT, **FURTHER}
NOT_TAKEN = {**REFUSED, **FURTHER_REFUSED}
WITHOUT_LINEAR_LAYERS = "mistral_with_window"
NEW = 6

each_taken = pytest.mark.parametrize("name", TAKEN)
each_attention = pytest.mark.parametrize("attention", ATTENTIONS)


@cache
def _model(name: str, attention: str) -> Any:
    return make(TAKEN[name], attention)


@each_attention
@each_taken
def test_outputs_and_gradients_are_finite_and_samples_do_not_see_each_other(name: str, attention: str) -> None:
    model, inputs = _model(name, attention), given(TAKEN[name])
    together = answer(model, inputs)
    together.square().mean().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    assert together.isfinite().all() and gradients and all(g.isfinite().all() for g in gradients)
    with torch.no_grad():
        alone = answer(model, {key: x[1:2] for key, x in inputs.items()})
    torch.testing.assert_close(alone, together[1:2], rtol=1e-4, atol=1e-4)


@each_attention
@pytest.mark.parametrize("name", [n for n, what in TAKEN.items() if what.padded and not what.generates])
def test_padding_changes_nothing(name: str, attention: str) -> None:
    model, inputs = _model(name, attention), given(TAKEN[name])
    ids = inputs["input_ids"]
    mask = torch.ones(len(ids), ids.shape[1] + 5, dtype=torch.long)
    mask[:, ids.shape[1] :] = 0
    padded = {**inputs, "input_ids": torch.cat([ids, torch.full((len(ids), 5), 3)], dim=1), "attention_mask": mask}
    with torch.no_grad():
        alone, together = answer(model, inputs), answer(model, padded)
    torch.testing.assert_close(together[:, : alone.shape[1]], alone, rtol=1e-4, atol=1e-4)


def _generated(model: Any, inputs: Given, use_cache: bool) -> tuple[Tensor, Tensor | None]:
    """The new tokens, and their logits (B, new, vocabulary) where generate() gives them."""
    prompt = {key: x for key, x in inputs.items() if key != "decoder_input_ids"}
    how: dict[str, Any] = {"use_cache": use_cache, "do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW}
    if "input_features" in prompt:
        return model.generate(**prompt, **how)[:, -NEW:], None
    found = model.generate(**prompt, **how, output_logits=True, return_dict_in_generate=True)
    return found.sequences[:, -NEW:], torch.stack(found.logits, dim=1)


def _padded(inputs: Given, causal_prompt: bool, pad: int = 5) -> Given:
    """Other samples are longer by `pad` tokens: the first is padded on the left, or an encoder's on the right."""
    if "input_ids" not in inputs:
        return inputs
    ids = inputs["input_ids"]
    filler = torch.full((len(ids), pad), 5)
    mask = torch.ones(len(ids), ids.shape[1] + pad, dtype=torch.long)
    mask[0, slice(0, pad) if causal_prompt else slice(-pad, None)] = 0
    parts = [filler, ids] if causal_prompt else [ids, filler]
    return {**inputs, "input_ids": torch.cat(parts, dim=1), "attention_mask": mask}


@each_attention
@pytest.mark.parametrize("name", [n for n, what in TAKEN.items() if what.generates])
def test_generate_is_the_same_with_and_without_cache_and_padding(name: str, attention: str) -> None:
    model, what = _model(name, attention), TAKEN[name]
    inputs = given(what, length=9)
    batch = _padded(inputs, causal_prompt=what.kind != "two texts")
    tokens, logits = _generated(model, batch, use_cache=True)
    without_tokens, without = _generated(model, batch, use_cache=False)
    assert torch.equal(tokens, without_tokens)
    torch.testing.assert_close(logits, without, rtol=1e-4, atol=1e-4)
    single = {key: x[:1] for key, x in inputs.items()}
    if "input_ids" in single:
        single["attention_mask"] = torch.ones_like(single["input_ids"])
    alone_tokens, alone = _generated(model, single, use_cache=True)
    assert torch.equal(alone_tokens, tokens[:1])
    torch.testing.assert_close(alone, None if logits is None else logits[:1], rtol=1e-4, atol=1e-4)


def test_a_model_that_hands_out_its_keys_is_refused_in_words() -> None:
    model, inputs = _model("whisper", "lln_diag"), given(TAKEN["whisper"])
    with pytest.raises(ValueError, match="keeps a state instead of keys and values"):
        model.generate(inputs["input_features"], return_dict_in_generate=True, max_new_tokens=2)


@each_attention
@each_taken
def test_a_saved_model_comes_back(name: str, attention: str, tmp_path: Any) -> None:
    model, inputs = _model(name, attention), given(TAKEN[name])
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation=attention).eval()
    with torch.no_grad():
        assert torch.equal(answer(loaded, inputs), answer(model, inputs))


@each_attention
@pytest.mark.parametrize("name", [name for name in TAKEN if name != WITHOUT_LINEAR_LAYERS])
def test_convert_changes_the_model_and_unload_gives_it_back(name: str, attention: str) -> None:
    model, inputs = make(TAKEN[name]), given(TAKEN[name])
    with torch.no_grad():
        before = answer(model, inputs)
        convert(model, attention, calibrate=[inputs], block_size=4)
        converted = answer(model, inputs)
        assert torch.equal(answer(unload(model), inputs), before)
    assert converted.isfinite().all() and (converted - before).abs().max() > 1e-4


@each_attention
def test_a_model_of_windows_alone_has_nothing_to_convert(attention: str) -> None:
    what = TAKEN[WITHOUT_LINEAR_LAYERS]
    with pytest.raises(ValueError, match="nothing to convert: every attention module .* has a window"):
        convert(make(what), attention, calibrate=[given(what)])


@each_attention
@pytest.mark.parametrize("name", NOT_TAKEN)
def test_what_is_not_right_is_refused_in_words(name: str, attention: str) -> None:
    """By every door: at construction or at the first call, when the attention is set, and by convert."""
    what, words = NOT_TAKEN[name]
    inputs = given(what)
    with pytest.raises(ValueError, match=words):
        answer(make(what, attention), inputs)
    model = make(what)
    with torch.no_grad():
        before = answer(model, inputs)
        softmax = model.config._attn_implementation
        with pytest.raises(ValueError, match=words):
            convert(model, attention, calibrate=[inputs])
        assert torch.equal(answer(model, inputs), before)
        model.config.lln = {"alpha": 2.0, "beta": 2.0}
        with pytest.raises(ValueError, match=words):
            model.set_attn_implementation(attention)
            answer(model, inputs)
        model.set_attn_implementation(softmax)
        assert torch.equal(answer(model, inputs), before)
