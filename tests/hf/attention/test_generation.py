"""generate() with a state of constant size: equal to no cache at all, and flat."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, Gemma3nTextConfig

from lln.hf import LLNCache, convert
from tests.hf import architectures
from tests.hf.models import CAUSAL, inputs, make

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True},
    "beams": {"num_beams": 3},
    "sampled beams": {"num_beams": 2, "do_sample": True},
    "several": {"do_sample": True, "num_return_sequences": 2},
}


def _generate(model: Any, use_cache: bool, mask: torch.Tensor | None = None, **way: Any) -> torch.Tensor:
    torch.manual_seed(3)
    ids = inputs("llama", batch=3, length=21)["input_ids"]
    return model.generate(
        ids, attention_mask=torch.ones_like(ids) if mask is None else mask, use_cache=use_cache,
        max_new_tokens=14, min_new_tokens=14, **way,
    )  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_cache_changes_nothing(family: str, way: str) -> None:
    model = make(family)
    mask = torch.ones(3, 21, dtype=torch.long)
    mask[0, :5], mask[1, :17] = 0, 0  # blocks of 8: left padding shorter and longer than a block
    with_cache = _generate(model, True, mask, **WAYS[way])
    assert torch.equal(with_cache, _generate(model, False, mask, **WAYS[way]))


@pytest.mark.parametrize("attention", ["lln", "lln_diag", "lln_near_far"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_the_cache_changes_nothing_in_other_families(family: str, attention: str) -> None:
    model = make(family, attention)
    assert torch.equal(_generate(model, True, do_sample=False), _generate(model, False, do_sample=False))


@pytest.mark.parametrize("attention", ["lln", "lln_diag", "lln_near_far"])
@pytest.mark.parametrize("family", CAUSAL)
def test_prefill_in_pieces_equals_one_forward(family: str, attention: str) -> None:
    model = make(family, attention)
    ids = inputs(family, batch=2, length=30)["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, :11] = 0
    with torch.no_grad():
        whole = model(ids, attention_mask=mask, use_cache=False).logits
        cache, pieces = LLNCache.of(model), []
        for a, b in ((0, 3), (3, 16), (16, 17), (17, 30)):
            pieces.append(model(ids[:, a:b], attention_mask=mask[:, :b], past_key_values=cache, use_cache=True).logits)
    counts = mask.bool()
    torch.testing.assert_close(torch.cat(pieces, 1)[counts], whole[counts], rtol=1e-4, atol=1e-4)


def test_the_cache_does_not_grow() -> None:
    model = make("llama")
    cache = LLNCache.of(model)
    sizes = []
    with torch.no_grad():
        for step in range(3):
            model(inputs("llama", length=20 + step)["input_ids"], past_key_values=cache, use_cache=True)
            sizes.append(cache.nbytes())
    assert sizes[0] == sizes[1] == sizes[2] > 0
    assert cache.get_seq_length() == 63


def test_generate_refuses_a_cache_of_keys() -> None:
    from transformers import DynamicCache

    model = make("llama")
    with pytest.raises(ValueError, match="DynamicCache keeps every key"):
        _generate(model, True, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="cache_implementation"):
        _generate(model, True, cache_implementation="static")


def test_a_zoo_member_generates_without_cache_only() -> None:
    model = make("llama", "elu")
    assert _generate(model, False).shape == (3, 35)
    with pytest.raises(ValueError, match="use_cache=False"):
        _generate(model, True)


def test_softmax_models_generate_as_ever() -> None:
    model = make("llama", "sdpa")
    assert torch.equal(_generate(model, True, do_sample=False), _generate(model, False, do_sample=False))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_model_with_some_softmax_layers_generates(family: str) -> None:
    model = make(family, "sdpa")
    model.config.lln = None
    convert(model, calibrate=[inputs(family)], keep_softmax=[0], block_size=8)
    mask = torch.ones(3, 21, dtype=torch.long)
    mask[0, :5] = 0
    assert torch.equal(_generate(model, True, mask, do_sample=False), _generate(model, False, mask, do_sample=False))


@pytest.mark.parametrize("attention", ["lln", "lln_diag", "lln_near_far"])
def test_compiled_decoding_does_not_recompile_at_each_step(attention: str) -> None:
    model = make("llama", attention)
    ids = inputs("llama", batch=2, length=40)["input_ids"]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    step = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        cache = LLNCache.of(model)
        logits = [model(ids[:, :10], past_key_values=cache, use_cache=True).logits]
        graphs, addresses = [], set()
        for i in range(10, 40):
            logits.append(step(input_ids=ids[:, i : i + 1], past_key_values=cache, use_cache=True).logits)
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
            addresses.add(
                tuple(x.data_ptr() for layer in cache.layers for x in layer.state.state_dict().values() if x.dim())
            )
    torch.testing.assert_close(torch.cat(logits, 1), whole, rtol=1e-4, atol=1e-4)
    assert graphs[-1] == graphs[3] <= 3, f"graphs after each step: {graphs}"
    assert len(addresses) == 1  # what mode="reduce-overhead" needs: a state that stays where it is, updated in place


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["lln", "lln_diag", "lln_near_far"])
def test_decoding_with_reduced_overhead(attention: str) -> None:
    """torch's own compiler and its mode for small steps; two graphs, since the first token after a prompt is a first call."""
    model = make("llama", attention)
    ids = inputs("llama", batch=2, length=40)["input_ids"]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    step = torch.compile(model.forward, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        cache = LLNCache.of(model)
        logits = [model(ids[:, :10], past_key_values=cache, use_cache=True).logits]
        for i in range(10, 40):
            logits.append(step(input_ids=ids[:, i : i + 1], past_key_values=cache, use_cache=True).logits.clone())
    torch.testing.assert_close(torch.cat(logits, 1), whole, rtol=1e-4, atol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_decoder_with_cross_attention_generates(kind: str) -> None:
    from transformers import BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel

    from tests.hf.models import spread_out

    torch.manual_seed(0)
    common = {"vocab_size": 40, "add_cross_attention": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "bert":
        config: Any = BertConfig(
            **common, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, is_decoder=True
        )
    else:
        config = GPT2Config(**common, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    config.lln = {"alpha": 2.0, "beta": 2.0, "block_size": 8}
    make_model: Any = BertLMHeadModel if kind == "bert" else GPT2LMHeadModel
    model = spread_out(make_model._from_config(config, attn_implementation="lln_diag").eval())
    encoded = torch.randn(3, 9, 32)
    made = [_generate(model, use_cache, do_sample=False, encoder_hidden_states=encoded) for use_cache in (True, False)]
    assert torch.equal(*made)
    other = _generate(model, True, do_sample=False, encoder_hidden_states=torch.randn(3, 9, 32))
    assert not torch.equal(made[0], other), "the encoder's states must matter"


def _tiny(config: Any) -> Any:
    torch.manual_seed(0)
    config.lln = {"alpha": 2.0, "beta": 2.0, "block_size": 8}
    return AutoModelForCausalLM.from_config(config, attn_implementation="lln_diag").eval()


SIZES = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def test_keys_that_change_after_they_are_stored_are_refused() -> None:
    """DeepSeek stores a compressed key: the state would be lost, and every token see itself alone."""
    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    model = _tiny(
        DeepseekV3Config(**SIZES, **ranks, num_hidden_layers=1, num_key_value_heads=4, first_k_dense_replace=1)
    )
    with pytest.raises(ValueError, match="never reached an LLN attention"):
        _generate(model, True)
    assert _generate(model, False).shape == (3, 35)


def test_layers_that_share_keys_are_refused() -> None:
    config = Gemma3nTextConfig(
        **SIZES, num_hidden_layers=4, num_key_value_heads=2, head_dim=8, num_kv_shared_layers=2, laurel_rank=4,
        layer_types=["full_attention"] * 4, vocab_size_per_layer_input=40, hidden_size_per_layer_input=8,
        activation_sparsity_pattern=None, altup_num_inputs=2,
    )  # fmt: skip
    with pytest.raises(ValueError, match="count them twice"):
        _generate(_tiny(config), True)


def test_a_softmax_model_gets_no_state() -> None:
    model = make("llama", "sdpa")
    with pytest.raises(ValueError, match="this model's attention is sdpa"):
        LLNCache.of(model)


def test_a_cache_that_outlives_its_attention_is_refused() -> None:
    model = make("llama")
    cache = LLNCache.of(model)
    ids = inputs("llama", batch=2, length=9)["input_ids"]
    model.set_attn_implementation("sdpa")
    model(ids, past_key_values=cache)
    with pytest.raises(ValueError, match="never reached an LLN attention"):
        model(ids[:, -1:], past_key_values=cache)


HYBRIDS = ("gemma3", "mistral_with_window", "lfm2", "jamba", "qwen3_next", "falcon_h1", "zamba2")


def _hybrid(name: str, attention: str | None) -> Any:
    return architectures.make({**architectures.RIGHT, **architectures.FURTHER}[name], attention)


@pytest.mark.parametrize("name", HYBRIDS)
def test_beams_in_models_with_other_layers(name: str) -> None:
    """Windows, convolutions and recurrences follow their beam too."""
    model = _hybrid(name, "lln_diag")
    mask = torch.ones(3, 21, dtype=torch.long)
    mask[0, :5] = 0
    made = [_generate(model, use_cache, mask, num_beams=3) for use_cache in (True, False)]
    assert torch.equal(*made)


@pytest.mark.parametrize("name", ["gemma3", "lfm2", "falcon_h1"])
def test_converted_models_with_other_layers_generate(name: str) -> None:
    model = convert(_hybrid(name, None), calibrate=[inputs("llama")], block_size=8)
    made = [_generate(model, use_cache, do_sample=False) for use_cache in (True, False)]
    assert torch.equal(*made)


@pytest.mark.parametrize("name", ["gemma3", "mistral_with_window"])
def test_prefill_in_pieces_keeps_the_window(name: str) -> None:
    """A window of 8; pieces longer and shorter than it."""
    model = _hybrid(name, "lln_diag")
    ids = inputs("llama", batch=2, length=30)["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, :11] = 0
    position = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        whole = model(ids, attention_mask=mask, position_ids=position, use_cache=False).logits
        cache, pieces = LLNCache.of(model), []
        for a, b in ((0, 3), (3, 16), (16, 17), (17, 30)):
            given = {"attention_mask": mask[:, :b], "position_ids": position[:, a:b], "past_key_values": cache}
            pieces.append(model(ids[:, a:b], **given, use_cache=True).logits)
    counts = mask.bool()
    torch.testing.assert_close(torch.cat(pieces, 1)[counts], whole[counts], rtol=1e-4, atol=1e-4)


def test_a_layer_with_a_recurrence_repeats_and_selects_both() -> None:
    model = _hybrid("falcon_h1", "lln_diag")
    ids = inputs("llama", batch=2, length=12)["input_ids"]
    rows = torch.tensor([0, 0, 1, 1])
    with torch.no_grad():
        once, repeated = LLNCache.of(model), LLNCache.of(model)
        model(ids[rows], past_key_values=once)
        model(ids, past_key_values=repeated)
        repeated.batch_repeat_interleave(2)
        repeated.batch_select_indices(torch.tensor([3, 0]))
        once.batch_select_indices(torch.tensor([3, 0]))
        step = ids[:, -1:]
        ours = model(step, past_key_values=repeated).logits
        torch.testing.assert_close(ours, model(step, past_key_values=once).logits, rtol=1e-4, atol=1e-4)
