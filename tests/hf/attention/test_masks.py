"""Only masks that are known are taken: padding, causal, packed, a window. Every other one is refused, compiled or not."""

from typing import Any

import pytest
import torch
import transformers as hf
from transformers import masking_utils as of

import lln.hf
from lln.hf.attention.functions import lln_forward
from lln.hf.attention.mask_patterns import Pattern, pattern_of
from lln.hf.attention.masks import padding_mask
from tests.hf.architectures import FURTHER_REFUSED, GROUPED, IMAGE_TOKEN, TEXT, VISION, given, make, spread_out

lln.hf.register()
OPTIONS = {"alpha": 2.0, "beta": 2.0, "block_size": 4}
IDS = torch.arange(3, 15)[None].repeat(2, 1)
UNKNOWN = "is not one a linear attention can honour"


def _own(batch: Any, head: Any, q: Any, k: Any) -> Any:
    return k <= q


def test_known_masks_are_recognised() -> None:
    assert pattern_of(of.causal_mask_function) == Pattern(causal=True)
    assert pattern_of(of.bidirectional_mask_function) == Pattern(causal=False)
    assert pattern_of(of.sliding_window_causal_mask_function(8)) == Pattern(causal=True, window=8)
    assert pattern_of(of.sliding_window_bidirectional_mask_function(8)) == Pattern(causal=False, window=9)
    sequences = torch.tensor([[0, 0, 1, 1]])
    packed = of.and_masks(of.sliding_window_causal_mask_function(8), of.packed_sequence_mask_function(sequences))
    found = pattern_of(packed)
    assert found is not None and found[:2] == (True, 8) and found.sequences is sequences


@pytest.mark.parametrize(
    "function",
    [
        _own,
        of.or_masks(of.causal_mask_function, of.causal_mask_function),
        of.and_masks(of.causal_mask_function, _own),
        of.and_masks(of.causal_mask_function, of.bidirectional_mask_function),
        of.and_masks(of.or_masks(of.causal_mask_function, _own), of.sliding_window_overlay(4)),
        of.and_masks(of.bidirectional_mask_function, of.sliding_window_overlay(4)),
        of.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long)),
        of.or_masks(of.causal_mask_function, of.blockwise_overlay(torch.zeros(2, 8, dtype=torch.long))),
        of.sliding_window_overlay(4),
        of.padding_mask_function(torch.ones(2, 8, dtype=torch.bool)),
    ],
    ids=["own", "or", "and own", "two bases", "or inside", "one side", "chunks", "blocks", "no base", "padding alone"],
)
def test_every_other_mask_is_unknown(function: Any) -> None:
    assert pattern_of(function) is None


def _tiny(config: Any, head: Any = hf.AutoModelForCausalLM) -> Any:
    torch.manual_seed(0)
    config.lln = dict(OPTIONS)
    build = getattr(head, "from_config", None) or head._from_config
    return spread_out(build(config, attn_implementation="lln_diag").eval())


def _hrm() -> Any:
    return _tiny(hf.HrmTextConfig(**{**TEXT, "max_position_embeddings": 64}, head_dim=8, H_cycles=1, L_cycles=1))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_prefix_that_sees_both_ways_is_refused(compiled: bool) -> None:
    """HRM text: with a prefix of six tokens; without one it is a causal model as any other."""
    model = _hrm()
    prefix = (torch.arange(12) < 6).long().repeat(2, 1)
    torch._dynamo.reset()
    run = torch.compile(model, backend="eager") if compiled else model
    with torch.no_grad():
        assert run(IDS, use_cache=False).logits.isfinite().all()
        with pytest.raises(ValueError, match=f"hrm_text.*{UNKNOWN}"):
            run(IDS, token_type_ids=prefix, use_cache=False)


@pytest.mark.parametrize("padded", [False, True], ids=["alone", "padded"])
def test_labels_do_not_leak_through_paligemma_s_prefix(padded: bool) -> None:
    what = FURTHER_REFUSED["paligemma"][0]
    inputs = given(what)
    ids = inputs["input_ids"]
    suffix = (torch.arange(ids.shape[1]) >= ids.shape[1] - 6).long().repeat(len(ids), 1)
    mask = torch.ones_like(ids)
    mask[0, 0] = 0
    more = {"attention_mask": mask} if padded else {}
    with pytest.raises(ValueError, match=UNKNOWN):
        make(what, "lln_diag")(**inputs, **more, token_type_ids=suffix, labels=ids, use_cache=False)
    with pytest.raises(ValueError, match="says that it is bidirectional, but its mask is causal"):
        make(what, "lln_diag")(**inputs, **more, use_cache=False)


def test_image_tokens_that_see_each_other_are_refused() -> None:
    """Gemma 3 takes text alone, and is refused with an image."""
    text = {**GROUPED, "head_dim": 8, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    config = hf.Gemma3Config(
        text_config=text, vision_config={"model_type": "siglip_vision_model", **VISION}, image_token_id=IMAGE_TOKEN,
        mm_tokens_per_image=4,
    )  # fmt: skip
    model = _tiny(config, hf.Gemma3ForConditionalGeneration)
    ids = torch.cat([IDS, torch.full((2, 4), IMAGE_TOKEN), IDS], dim=1)
    with torch.no_grad():
        assert model(input_ids=IDS, use_cache=False).logits.isfinite().all()
        with pytest.raises(ValueError, match=UNKNOWN):
            model(
                input_ids=ids, pixel_values=torch.randn(2, 3, 16, 16), token_type_ids=(ids == IMAGE_TOKEN).long(),
                use_cache=False,
            )  # fmt: skip


def test_a_model_of_one_pattern_is_not_refused_for_the_mask_of_another() -> None:
    """Llama 4 makes a mask of chunks even where no layer has them."""
    config = hf.Llama4TextConfig(
        **GROUPED, head_dim=8, attention_chunk_size=4, num_local_experts=2, intermediate_size_mlp=48,
        layer_types=["full_attention"] * 2,
    )  # fmt: skip
    model = _tiny(config, hf.Llama4ForCausalLM)
    assert model(IDS, use_cache=False).logits.isfinite().all()


@pytest.mark.parametrize("padded", [False, True], ids=["alone", "padded"])
def test_the_window_is_that_of_the_mask(padded: bool) -> None:
    """T5Gemma's encoder tells its attention a window of 4 and masks one of 5: softmax sees the mask's."""
    part = {**GROUPED, "head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": None,
            "layer_types": ["sliding_attention"] * 2}  # fmt: skip
    config = hf.T5GemmaConfig(encoder=part, decoder=dict(part))
    model = _tiny(config, hf.AutoModelForSeq2SeqLM).get_encoder()
    mask = torch.ones_like(IDS)
    mask[0, 9:] = 0
    more = {"attention_mask": mask} if padded else {}
    with torch.no_grad():
        ours = model(IDS, **more).last_hidden_state
        model.set_attn_implementation("eager")
        softmax = model(IDS, **more).last_hidden_state
    counts = mask.bool() if padded else torch.ones_like(mask).bool()
    torch.testing.assert_close(ours[counts], softmax[counts], rtol=1e-4, atol=1e-4)


def test_packing_that_only_the_mask_knows_is_noticed_in_a_compiled_model() -> None:
    model = _tiny(hf.GPTBigCodeConfig(vocab_size=40, n_embd=32, n_layer=1, n_head=4, n_positions=32))
    position = torch.cat([torch.arange(5), torch.arange(7)])[None].repeat(2, 1)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert compiled(IDS, position_ids=torch.arange(12)[None], use_cache=False).logits.isfinite().all()
        with pytest.raises(RuntimeError, match="cu_seq_lens_q"):
            compiled(IDS, position_ids=position, use_cache=False)


def _module(causal: bool | None) -> Any:
    module: Any = torch.nn.Linear(1, 1)
    module.config = type("Config", (), {"lln": dict(OPTIONS)})()
    if causal is not None:
        module.is_causal = causal
    return module


def test_a_module_that_contradicts_its_mask_is_refused() -> None:
    q = torch.randn(2, 2, 6, 4)
    causal = padding_mask(2, 6, 6, mask_function=of.causal_mask_function)
    both_ways = padding_mask(2, 6, 6, mask_function=of.bidirectional_mask_function)
    with pytest.raises(ValueError, match="is bidirectional, but its mask is causal"):
        lln_forward(_module(False), q, q, q, causal)
    with pytest.raises(ValueError, match="is causal, but its mask is not"):
        lln_forward(_module(True), q, q, q, both_ways)
    silent = lln_forward(_module(None), q, q, q, both_ways)[0]
    assert torch.equal(silent, lln_forward(_module(False), q, q, q, both_ways)[0])
    with pytest.raises(ValueError, match="asks for a sliding window of 3, but its mask has none"):
        lln_forward(_module(True), q, q, q, causal, sliding_window=3)


def test_a_mask_of_unknown_origin_is_taken_only_as_padding() -> None:
    q, k = torch.randn(2, 2, 6, 4), torch.randn(2, 2, 9, 4)
    module = _module(False)
    ours = lln_forward(module, q, q, q, torch.ones(2, 6, dtype=torch.long))[0]
    torch.testing.assert_close(ours, lln_forward(module, q, q, q, None)[0])
    with pytest.raises(ValueError, match="a mask of float32, which is added to scores"):
        lln_forward(module, q, q, q, torch.zeros(2, 6))
    with pytest.raises(ValueError, match="that the model put together itself, for 6 queries and 9 keys"):
        lln_forward(module, q, k, k, torch.ones(2, 9, dtype=torch.bool))
