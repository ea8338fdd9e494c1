"""`lln_near_far` in a model: the function of lln.near_far, its options, and its state in generate()."""

from typing import Any

import pytest
import torch

from lln import NearFarState
from lln.hf import LLNCache, LLNOptions
from lln.hf.attention.functions import lln_near_far_forward
from lln.near_far import near_far_attention
from tests.hf.models import inputs, make, output

WIDE = {"neighbours": 1, "first_tokens": 3, "weights": [0.1, 0.4, 0.7, 0.3]}


def module_of(causal: bool, **options: Any) -> Any:
    module: Any = torch.nn.Linear(1, 1)
    module.is_causal, module.config = causal, type("Config", (), {"lln": {"block_size": 4, **options}})()
    return module


@pytest.mark.parametrize("causal", [False, True])
def test_a_call_is_the_function(causal: bool) -> None:
    q, k, v = torch.randn(2, 4, 30, 8), torch.randn(2, 2, 30, 8), torch.randn(2, 2, 30, 8)
    scales: dict[str, Any] = {"alpha": 2.0, "beta": 2.0} if causal else {}
    out, _ = lln_near_far_forward(module_of(causal, **WIDE, **scales), q, k, v, None, scaling=0.3)
    expected = near_far_attention(
        q, k, v, **scales, weights=torch.tensor(WIDE["weights"]), block_size=4, neighbours=1, first_tokens=3, scale=0.3,
        is_causal=causal,
    )  # fmt: skip
    torch.testing.assert_close(out, expected.transpose(1, 2))


@pytest.mark.parametrize("family", ["bert", "llama", "vit"])
def test_a_text_within_its_block_is_softmax(family: str) -> None:
    given = inputs(family)
    with torch.no_grad():
        near = output(make(family, "lln_near_far", block_size=128), **given)
        softmax = output(make(family, "sdpa"), **given)
        short = output(make(family, "lln_near_far"), **given)
    torch.testing.assert_close(near, softmax, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(short, softmax, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_has_no_influence(side: str) -> None:
    model = make("bert", "lln_near_far", **WIDE)
    ids = inputs("bert", batch=2, length=29)["input_ids"]
    kept = slice(0, 20) if side == "right" else slice(9, 29)
    mask = torch.ones_like(ids)
    mask[0] = 0
    mask[0, kept] = 1
    positions = torch.arange(29)[None].repeat(2, 1)
    positions[0, kept] = torch.arange(20)
    with torch.no_grad():
        padded = output(model, input_ids=ids, attention_mask=mask, position_ids=positions)
        alone = output(model, input_ids=ids[:1, kept])
    torch.testing.assert_close(padded[:1, kept], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", [{"do_sample": False}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_generating_with_the_state_is_generating_without(way: dict[str, Any]) -> None:
    model = make("llama", "lln_near_far", **WIDE)
    ids = inputs("llama", batch=3, length=21)["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, :5], mask[1, :17] = 0, 0
    texts = [
        model.generate(ids, attention_mask=mask, use_cache=cached, max_new_tokens=20, min_new_tokens=20, **way)
        for cached in (True, False)
    ]
    assert torch.equal(*texts)


def test_the_cache_holds_a_state_that_does_not_grow() -> None:
    model, sizes = make("llama", "lln_near_far", **WIDE), []
    cache = LLNCache.of(model)
    with torch.no_grad():
        for step in range(3):
            model(inputs("llama", length=20 + step)["input_ids"], past_key_values=cache, use_cache=True)
            sizes.append(cache.nbytes())
    assert isinstance(cache.layers[0].state, NearFarState)
    assert sizes[0] == sizes[1] == sizes[2] > 0 and cache.get_seq_length() == 63


def test_the_state_of_another_attention_is_refused() -> None:
    model = make("llama")
    cache, ids = LLNCache.of(model), inputs("llama")["input_ids"]
    model(ids, past_key_values=cache, use_cache=True)
    model.set_attn_implementation("lln_near_far")
    with pytest.raises(ValueError, match="state of another attention than lln_near_far"):
        model(ids[:, :1], past_key_values=cache, use_cache=True)


def test_a_causal_model_needs_alpha_and_beta() -> None:
    model = make("llama", "lln_near_far", alpha=None, beta=None)
    with pytest.raises(ValueError, match="causal attention needs alpha and beta"):
        output(model, **inputs("llama"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"neighbours": -1}, "neighbours'] must be a whole number of at least 0, got -1"),
        ({"first_tokens": True}, "first_tokens'] must be a whole number"),
        ({"weights": [1.0, 2.0]}, "weights'] must be four numbers, of near, LLN, mean and slope"),
    ],
)
def test_options_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLNOptions(**given)
