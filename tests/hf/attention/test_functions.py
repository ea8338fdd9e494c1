"""What a call may ask for: packing, cross-attention, weights, windows; and what is refused, in words."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, BertLMHeadModel, DynamicCache, GPTBigCodeConfig

import lln.hf
from lln import lln_diag_attention
from lln.hf.attention.functions import lln_diag_forward
from lln.hf.attention.window import window_attention
from tests.hf.models import CAUSAL, inputs, make, output, spread_out


@pytest.mark.parametrize("attention", ["lln", "lln_diag", "lln_near_far", "elu"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "bert"])
def test_packed_sequences_are_kept_apart(family: str, attention: str) -> None:
    model = make(family, attention)
    ids = inputs(family, batch=2, length=20)["input_ids"]
    position = torch.cat([torch.arange(7), torch.arange(13)])[None].repeat(2, 1)
    position[1] = torch.cat([torch.arange(12), torch.arange(8)])
    with torch.no_grad():
        packed = output(model, input_ids=ids, position_ids=position)
        for row, cut in ((0, 7), (1, 12)):
            for part in (slice(0, cut), slice(cut, 20)):
                alone = output(model, input_ids=ids[row : row + 1, part])
                torch.testing.assert_close(packed[row, part], alone[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", ["sdpa", "lln_diag"])
def test_packing_that_reaches_the_mask_alone_is_honoured(attention: str) -> None:
    """GPTBigCode does not hand position_ids on to its attention; transformers puts the boundaries into the mask."""
    torch.manual_seed(0)
    config = GPTBigCodeConfig(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    config.lln = {"alpha": 2.0, "beta": 2.0, "block_size": 8}
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    ids = inputs("gpt2", batch=2, length=20)["input_ids"]
    position = torch.cat([torch.arange(7), torch.arange(13)])[None].repeat(2, 1)
    with torch.no_grad():
        packed = model(input_ids=ids, position_ids=position, use_cache=False).logits
        alone = model(input_ids=ids[:, 7:], use_cache=False).logits
    torch.testing.assert_close(packed[:, 7:], alone, rtol=1e-4, atol=1e-5)


def test_grouped_queries_equal_repeated_keys() -> None:
    q, k, v = torch.randn(2, 4, 10, 8), torch.randn(2, 2, 10, 8), torch.randn(2, 2, 10, 8)
    module = torch.nn.Linear(1, 1)
    module.is_causal, module.config = True, type("C", (), {"lln": {"alpha": 2.0, "beta": 2.0, "block_size": 4}})()  # type: ignore[assignment]
    out, _ = lln_diag_forward(module, q, k, v, None)
    k4, v4 = (x.repeat_interleave(2, dim=1) for x in (k, v))
    weight = 0.5 * torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1, 1.0])[None, None]  # keys outside the block, over its size
    expected = lln_diag_attention(q, k4, v4, 2.0, 2.0, mix=weight, block_size=4, is_causal=True)
    torch.testing.assert_close(out, expected.transpose(1, 2))


@pytest.mark.parametrize("attention", ["lln", "lln_diag", "lln_near_far"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_weights_reproduce_the_output(family: str, attention: str) -> None:
    model = make(family, attention)
    weights = model(**inputs(family), output_attentions=True, **({} if family == "bert" else {"use_cache": False}))
    for matrix in weights.attentions:
        assert matrix.shape == (3, 4, 21, 21)
        torch.testing.assert_close(matrix.sum(-1), torch.ones(3, 4, 21), rtol=1e-4, atol=1e-4)
        if family in CAUSAL:
            assert matrix.triu(1).abs().max() == 0


def _decoder(attention: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        is_decoder=True, add_cross_attention=True, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    config.lln = {"block_size": 8, **options}
    return spread_out(BertLMHeadModel._from_config(config, attn_implementation=attention).eval())


@pytest.mark.parametrize("attention", ["lln", "lln_diag", "lln_near_far"])
def test_cross_attention_ignores_padded_keys_and_later_queries(attention: str) -> None:
    model = _decoder(attention, alpha=2.0, beta=2.0)
    ids = torch.randint(3, 40, (2, 12))
    encoded = torch.randn(2, 12, 32)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[:, 8:] = 0
    with torch.no_grad():
        whole = model(ids, encoder_hidden_states=encoded, encoder_attention_mask=mask, use_cache=False).logits
        cut = model(ids[:, :9], encoder_hidden_states=encoded[:, :8], use_cache=False).logits
    torch.testing.assert_close(whole[:, :9], cut, rtol=1e-4, atol=1e-4)


def test_cross_attention_of_a_decoder_needs_alpha_and_beta() -> None:
    with pytest.raises(ValueError, match="alpha and beta"):
        _decoder("lln")(torch.ones(1, 4, dtype=torch.long), encoder_hidden_states=torch.randn(1, 5, 32))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [5, 16, 23])
def test_a_window_is_softmax_over_near_keys(causal: bool, length: int) -> None:
    window = 4
    q, k, v = torch.randn(2, 4, length, 8), torch.randn(2, 2, length, 8), torch.randn(2, 2, length, 8)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, :3] = False
    at = torch.arange(length)
    distance = at[:, None] - at
    allowed = (distance < window) & (distance > -window) & mask[:, None, None]
    if causal:
        allowed = allowed & (distance >= 0)
    scores = (q @ k.repeat_interleave(2, 1).mT * 0.3).masked_fill(~allowed, -torch.inf)
    expected = torch.softmax(scores, -1).nan_to_num(0.0) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(window_attention(q, k, v, window, 0.3, mask, causal), expected)


def test_modernbert_keeps_its_local_layers() -> None:
    """Layer 1 is local, layer 0 global: with the global layer on softmax too, the model is the original."""
    model = make("modernbert")
    for module in model.modules():
        if hasattr(module, "sliding_window") and module.sliding_window is None:
            module.lln_keeps_softmax = True
    given = inputs("modernbert")
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    given["attention_mask"][0, 15:] = 0
    counts = given["attention_mask"].bool()
    with torch.no_grad():
        ours = output(model, **given)
        model.set_attn_implementation("sdpa")
        torch.testing.assert_close(ours[counts], output(model, **given)[counts], rtol=1e-4, atol=1e-4)


def test_a_causal_model_without_alpha_is_refused() -> None:
    model = make("llama")
    model.config.lln = {}
    with pytest.raises(ValueError, match="future into the past"):
        output(model, **inputs("llama"))


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_mask_for_every_pair_is_refused(family: str) -> None:
    with pytest.raises(ValueError, match="cannot be honoured"):
        output(make(family), **inputs(family), attention_mask=torch.ones(3, 1, 21, 21))


def test_a_growing_cache_is_refused() -> None:
    model = make("llama")
    first = model(**inputs("llama"), past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="DynamicCache"):
        model(input_ids=torch.ones(3, 1, dtype=torch.long), past_key_values=first.past_key_values)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"version": 7}, "version"),
        ({"target": "mean"}, "target"),
        ({"block_size": 0}, "block_size"),
        ({"mix": 2.0}, "mix"),
        ({"alpha": 1.0}, "together"),
        ({"alpha": -1.0, "beta": 1.0}, "alpha"),
        ({"alpha": float("inf"), "beta": 1.0}, "alpha"),
        ({"blocksize": 8}, "blocksize"),
    ],
)
def test_wrong_options_are_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lln.hf.LLNOptions.from_dict(given)


def test_options_that_could_not_be_saved_are_refused() -> None:
    model = make("bert")
    model.config.lln = lln.hf.LLNOptions(block_size=8)
    with pytest.raises(TypeError, match="to_dict"):
        output(model, **inputs("bert"))


def test_dropout_acts_in_training_only() -> None:
    model = make("bert")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    given = inputs("bert")
    assert torch.equal(output(model, **given), output(model, **given))
    model.train()
    assert not torch.equal(output(model, **given), output(model, **given))
