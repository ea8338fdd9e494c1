"""Models whose attention cannot become linear are refused in words: never another model under the same name."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DogeConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    Gemma2Config,
    GPTJConfig,
    GptOssConfig,
    InformerConfig,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MistralConfig,
    MPNetConfig,
    ResNetConfig,
    RoFormerConfig,
    T5Config,
    T5EncoderModel,
)

import lln.hf
from lln.hf import suitability

lln.hf.register()

SIZES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
HEADS = {"head_dim": 8, "num_key_value_heads": 4}
OWN_ATTENTION = {
    "mpnet": (AutoModel, MPNetConfig(**SIZES)),
    "deberta": (AutoModel, DebertaV2Config(**SIZES)),
    "gptj": (AutoModelForCausalLM, GPTJConfig(vocab_size=32, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)),
}
SCORE_TERMS = {
    "softcap": (AutoModelForCausalLM, Gemma2Config(**SIZES, **HEADS)),
    "s_aux": (AutoModelForCausalLM, GptOssConfig(**SIZES, **HEADS, num_local_experts=2, num_experts_per_tok=1)),
}
TOKENS = torch.arange(3, 15)[None]


@pytest.mark.parametrize("attention", ["lln", "lln_diag", "elu"])
@pytest.mark.parametrize("family", OWN_ATTENTION)
def test_a_model_that_does_not_call_the_interface_is_refused(family: str, attention: str) -> None:
    auto, config = OWN_ATTENTION[family]
    with pytest.raises(ValueError, match="would change nothing"):
        auto.from_config(config, attn_implementation=attention)
    model = auto.from_config(config, attn_implementation="eager")
    with pytest.raises(ValueError, match="would change nothing"):
        model.set_attn_implementation(attention)
    with pytest.raises(ValueError, match="would change nothing"):
        model.set_attn_implementation({"": attention})


@pytest.mark.parametrize("attention", ["lln", "lln_diag", "elu"])
@pytest.mark.parametrize("term", SCORE_TERMS)
def test_what_acts_on_the_scores_is_refused(term: str, attention: str) -> None:
    auto, config = SCORE_TERMS[term]
    config.lln = {"version": 1, "alpha": 1.0, "beta": 1.0}
    model = auto.from_config(config, attn_implementation=attention).eval()
    with pytest.raises(ValueError, match=f"gives its attention {term}"):
        model(input_ids=TOKENS, use_cache=False)


def test_chunks_that_do_not_see_each_other_are_refused() -> None:
    config = Llama4TextConfig(**SIZES, **HEADS, attention_chunk_size=4, num_local_experts=2, intermediate_size_mlp=48)
    config.lln = {"version": 1, "alpha": 1.0, "beta": 1.0}
    model = Llama4ForCausalLM._from_config(config, attn_implementation="lln_diag").eval()
    with pytest.raises(ValueError, match="has 'chunked_attention'"):
        model(input_ids=TOKENS, use_cache=False)


def test_relative_positions_are_refused() -> None:
    config = T5Config(vocab_size=32, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    model = T5EncoderModel._from_config(config, attn_implementation="lln_diag").eval()
    with pytest.raises(ValueError, match="gives its attention position_bias"):
        model(input_ids=TOKENS)


def test_without_its_cap_gemma_2_is_taken() -> None:
    config = Gemma2Config(**SIZES, **HEADS, attn_logit_softcapping=None)
    config.lln = {"version": 1, "alpha": 1.0, "beta": 1.0}
    model = AutoModelForCausalLM.from_config(config, attn_implementation="lln_diag").eval()
    assert model(input_ids=TOKENS, use_cache=False).logits.isfinite().all()


class PoolingAttention(nn.Module):
    """A user's own module beside a model of theirs: it says nothing about the model's attention."""


class UsersModel(BertModel):
    pass


def test_a_user_s_subclass_of_a_model_that_calls_it_is_taken() -> None:
    config = BertConfig(**SIZES, lln={"block_size": 4})
    model = UsersModel._from_config(config, attn_implementation="lln_diag").eval()
    softmax = UsersModel._from_config(BertConfig(**SIZES), attn_implementation="eager").eval()
    softmax.load_state_dict(model.state_dict())
    assert not torch.allclose(model(TOKENS)[0], softmax(TOKENS)[0])


def test_other_attentions_stay_transformers_business() -> None:
    model = AutoModel.from_config(OWN_ATTENTION["mpnet"][1])
    model.set_attn_implementation("eager")  # transformers warns, if anything
    assert model(TOKENS)[0].isfinite().all()


def test_a_part_that_does_not_call_the_interface_is_refused_with_the_whole() -> None:
    """transformers would warn, and leave the decoder as it is."""
    decoder = RoFormerConfig(**SIZES, embedding_size=32, is_decoder=True, add_cross_attention=True)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**SIZES), decoder)
    with pytest.raises(ValueError, match="RoFormer.* would change nothing"):
        EncoderDecoderModel(config).set_attn_implementation("lln_diag")


def test_attention_on_a_mask_of_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="DogeAttention .* chooses keys for each query"):
        AutoModelForCausalLM.from_config(DogeConfig(**SIZES), attn_implementation="lln")


def test_a_part_without_attention_does_not_refuse_the_whole() -> None:
    """As in a model that sees through convolutions and speaks with attention."""
    vision = ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic")
    with pytest.raises(ValueError, match="nothing in ResNetModel calls"):
        AutoModel.from_config(vision, attn_implementation="lln")

    class Whole(BertModel):
        def __init__(self, config: BertConfig) -> None:
            super().__init__(config)
            self.vision = AutoModel.from_config(vision, attn_implementation=config._attn_implementation)
            self.post_init()

    assert Whole._from_config(BertConfig(**SIZES), attn_implementation="lln").vision is not None


def test_layers_that_keep_their_softmax_are_named_once() -> None:
    config = MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=5)
    near = "attention layers 0, 1 of mistral have a sliding window: .* no layer becomes linear"
    suitability._said.clear()
    with pytest.warns(UserWarning, match=near):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="lln_diag")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_attn_implementation("lln")
        AutoModelForCausalLM.from_config(config, attn_implementation="lln_diag")


def test_attention_that_stays_its_own_beside_others_is_named() -> None:
    config = InformerConfig(
        prediction_length=4, context_length=8, lags_sequence=[1], input_size=1, d_model=32, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
    )  # fmt: skip
    suitability._said.clear()
    with pytest.warns(UserWarning, match="InformerProbSparseAttention in InformerModel compute attention themselves"):
        AutoModel.from_config(config, attn_implementation="lln")
