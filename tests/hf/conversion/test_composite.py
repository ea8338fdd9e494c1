"""Models of several parts: each part's config describes its own attention, saved and restored with the whole."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    BartConfig,
    BartForConditionalGeneration,
    BartModel,
    BertConfig,
    CLIPConfig,
    CLIPModel,
    CLIPVisionModel,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    OPTConfig,
)

from lln.hf import convert, unload
from lln.hf.conversion.attach import refuse_unsaved_configs
from lln.hf.modules import attention_modules
from tests.hf.models import VOCABULARY

SIZE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def _clip() -> Any:
    text = {**SIZE, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "eos_token_id": 2}
    return CLIPModel(CLIPConfig(text_config=text, vision_config={**SIZE, "image_size": 32, "patch_size": 4}))


def _bert_to_bert() -> Any:
    encoder = BertConfig(**SIZE, vocab_size=VOCABULARY)
    decoder = BertConfig(**SIZE, vocab_size=VOCABULARY, is_decoder=True, add_cross_attention=True)
    return EncoderDecoderModel(EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder, **TOKENS))


def _bart() -> Any:
    layers = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in
              (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))}  # fmt: skip
    return BartForConditionalGeneration(BartConfig(vocab_size=VOCABULARY, d_model=32, **layers, **TOKENS))


MODELS = {"clip": _clip, "bert to bert": _bert_to_bert, "bart": _bart}


def _model(name: str) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for x in model.parameters():
            x.mul_(4 if x.dim() == 2 else 1)  # sharper than at initialisation, so that attention matters
    return model


def _inputs(name: str) -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (2, 20), generator=random)
    beside = "pixel_values" if name == "clip" else "decoder_input_ids"
    return {"input_ids": ids, beside: torch.randn(2, 3, 32, 32, generator=random) if name == "clip" else ids.flip(0)}


def _output(model: Any, name: str) -> Any:
    found = model(**_inputs(name))
    return found.logits_per_text if name == "clip" else found.logits


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_of_parts_is_restored_and_unloaded(name: str, tmp_path: Any) -> None:
    model = _model(name)
    with torch.no_grad():
        softmax = _output(model, name)
        convert(model, calibrate=[_inputs(name)], block_size=4).save_pretrained(tmp_path)
        converted = _output(model, name)
        loaded = type(model).from_pretrained(tmp_path).eval()
        assert torch.equal(_output(loaded, name), converted) and not torch.allclose(converted, softmax)
        assert torch.equal(_output(unload(model), name), softmax)
    assert all(m.config.lln["block_size"] == 4 for m in attention_modules(loaded))
    assert not any(hasattr(m.config, "lln") or hasattr(m, "lln") for m in attention_modules(model))


def test_a_part_of_a_converted_model_loads_by_itself(tmp_path: Any) -> None:
    model = convert(_model("clip"), calibrate=[_inputs("clip")], block_size=4)
    model.save_pretrained(tmp_path)
    part = CLIPVisionModel.from_pretrained(tmp_path).eval()
    pixels = _inputs("clip")["pixel_values"]
    with torch.no_grad():
        whole = model.vision_model(pixels).last_hidden_state
        assert torch.equal(part(pixels).last_hidden_state, whole)


def test_a_part_that_shares_its_config_is_refused_without_its_parameters(tmp_path: Any) -> None:
    convert(_model("bart"), calibrate=[_inputs("bart")], block_size=4).save_pretrained(tmp_path)
    config = BartModel.from_pretrained(tmp_path).config
    encoder = type(BartModel(config).get_encoder())(config)
    with pytest.raises(ValueError, match="load the whole model that was converted"):
        encoder(_inputs("bart")["input_ids"])


def test_options_of_the_whole_reach_its_parts() -> None:
    config = _bert_to_bert().config
    config.lln = {"alpha": 2.0, "beta": 2.0, "block_size": 4}
    model = EncoderDecoderModel(config).eval()
    model.set_attn_implementation("lln_diag")
    assert all(m.config.lln["block_size"] == 4 for m in attention_modules(model))
    _output(model, "bert to bert")  # a causal decoder would refuse without alpha and beta


def test_attention_that_reads_a_copy_of_the_config_is_refused() -> None:
    """The copy is not saved: the model would come back as softmax."""
    config = BertConfig(**SIZE, vocab_size=VOCABULARY)
    model = AutoModel.from_config(config)
    refuse_unsaved_configs(model)
    attention_modules(model)[0].config = BertConfig(**SIZE, vocab_size=VOCABULARY)
    with pytest.raises(ValueError, match="reads a copy of BertModel's config"):
        convert(model, calibrate=[{"input_ids": _inputs("bart")["input_ids"]}])


def test_matching_takes_the_scale_that_the_attention_is_called_with() -> None:
    """OPT scales q before the call and asks for 1; its module's own `scaling` would be applied twice."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "ffn_dim": 48}
    model = AutoModel.from_config(OPTConfig(vocab_size=VOCABULARY, word_embed_proj_dim=32, **sizes)).eval()
    found = {}
    for factor in (1.0, 3.0):  # the module's `scaling` is in q already: as a second factor it must not matter
        attention: Any = attention_modules(model)[0]
        attention.q_proj.weight.data.mul_(attention.scaling * factor)
        attention.q_proj.bias.data.mul_(attention.scaling * factor)
        attention.scaling = 1 / factor
        convert(model, calibrate=[{"input_ids": _inputs("bart")["input_ids"]}], fit=False)
        found[factor] = attention.lln.alpha.detach().clone()
        unload(model)
    torch.testing.assert_close(found[1.0], found[3.0])
