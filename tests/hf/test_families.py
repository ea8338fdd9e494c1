"""What must hold for every family: the mask arrives, padding changes nothing, weights and options survive, compilation."""

from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

from lln.hf import LLNOptions
from lln.hf.attention.masks import padding_mask
from tests.hf.models import CAUSAL, ENCODERS, FAMILIES, TEXT, inputs, make, output

ATTENTIONS = ("lln", "lln_diag")


def _padded(family: str, left: bool, pad: int = 6) -> tuple[dict[str, Any], dict[str, Any], slice]:
    """One sample alone, the same in a padded batch of two, and where it is in there."""
    ids = inputs(family, batch=2, length=21)["input_ids"]
    short, length = 21 - pad, 21
    filler = torch.full((1, pad), 7)
    alone = ids[:1, :short]
    row = torch.cat([filler, alone], 1) if left else torch.cat([alone, filler], 1)
    mask = torch.ones(2, length, dtype=torch.long)
    mask[0, : pad if left else None] = 0 if left else 1
    if not left:
        mask[0, short:] = 0
    where = slice(pad, None) if left else slice(0, short)
    position = torch.arange(short)[None]
    batch = {"input_ids": torch.cat([row, ids[1:]]), "attention_mask": mask}
    single = {"input_ids": alone}
    if family in CAUSAL and left:
        whole = torch.arange(length)[None].repeat(2, 1)
        whole[0] = torch.cat([torch.zeros(pad, dtype=torch.long), position[0]])
        batch["position_ids"], single["position_ids"] = whole, position
    return single, batch, where


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("family", TEXT)
def test_padding_changes_nothing(family: str, left: bool, attention: str) -> None:
    if left and family in ENCODERS:
        pytest.skip("encoders with learned or rotary positions are padded on the right")
    model = make(family, attention)
    single, batch, where = _padded(family, left)
    with torch.no_grad():
        alone, together = output(model, **single)[0], output(model, **batch)[0, where]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", TEXT)
def test_the_mask_arrives_at_the_attention(family: str) -> None:
    """Fails if the mask is None: then masked tokens would count."""
    model = make(family)
    given = inputs(family)
    mask = torch.ones_like(given["input_ids"])
    mask[:, :9] = 0
    with torch.no_grad():
        kept, dropped = output(model, **given), output(model, **given, attention_mask=mask)
    assert (kept - dropped)[:, 9:].abs().max() > 1e-2
    changed = given["input_ids"].clone()
    changed[:, :9] = 5
    with torch.no_grad():
        again = output(model, input_ids=changed, attention_mask=mask)
    torch.testing.assert_close(again[:, 9:], dropped[:, 9:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_really_replaced(family: str) -> None:
    model = make(family, "lln_diag")
    with torch.no_grad():
        linear = output(model, **inputs(family))
        model.set_attn_implementation("sdpa")
        softmax = output(model, **inputs(family))
        model.set_attn_implementation("lln_diag")
        again = output(model, **inputs(family))
    assert (linear - softmax).abs().max() > 1e-3
    assert torch.equal(linear, again)


@pytest.mark.parametrize("family", FAMILIES)
def test_options_survive_save_and_load(family: str, tmp_path: Any) -> None:
    model = make(family, block_size=16, mix=0.25)
    model.save_pretrained(tmp_path)
    kind = AutoModelForCausalLM if family in CAUSAL else AutoModel
    loaded = kind.from_pretrained(tmp_path, attn_implementation="lln_diag").eval()
    assert LLNOptions.from_dict(loaded.config.lln) == LLNOptions.from_dict(model.config.lln)
    with torch.no_grad():
        assert torch.equal(output(loaded, **inputs(family)), output(model, **inputs(family)))


@pytest.mark.parametrize("family", ["bert", "modernbert", "llama", "gpt2", "vit"])
def test_gradient_checkpointing_gives_the_same_gradients(family: str) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = make(family).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpointing:
            model.gradient_checkpointing_enable()
        output(model, **inputs(family)).square().mean().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 0
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(checkpointed, plain)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_compiled_model_gives_the_same_output(family: str) -> None:
    model = make(family)
    given = inputs(family)
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    given["attention_mask"][0, :4] = 0
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(output(compiled, **given), output(model, **given), rtol=1e-4, atol=1e-4)


def test_a_compiled_model_refuses_packed_sequences() -> None:
    model = make("llama")
    ids = inputs("llama", batch=1)["input_ids"]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        output(compiled, input_ids=ids, position_ids=torch.arange(21)[None])
        with pytest.raises(RuntimeError, match="cu_seq_lens_q"):
            output(compiled, input_ids=ids, position_ids=torch.cat([torch.arange(10), torch.arange(11)])[None])


def test_without_a_mask_function_the_mask_would_be_lost() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    for name in lln_names():
        assert ALL_MASK_ATTENTION_FUNCTIONS[name] is padding_mask


def lln_names() -> list[str]:
    import lln.hf

    return lln.hf.register()


@pytest.mark.parametrize("name", [n for n in lln_names() if n not in ATTENTIONS])
def test_zoo_members_serve_a_padded_encoder(name: str) -> None:
    model = make("bert", name)
    single, batch, where = _padded("bert", left=False)
    with torch.no_grad():
        alone, together = output(model, **single)[0], output(model, **batch)[0, where]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["elu", "performer", "softmax"])
def test_zoo_members_serve_a_causal_model(name: str) -> None:
    model = make("llama", name)
    given = inputs("llama")
    changed = given["input_ids"].clone()
    changed[:, 15:] = 3
    with torch.no_grad():
        before, after = output(model, **given), output(model, input_ids=changed)
    torch.testing.assert_close(before[:, :15], after[:, :15], rtol=1e-4, atol=1e-4)
    assert (before[:, 15:] - after[:, 15:]).abs().max() > 1e-3


def test_zoo_softmax_is_the_models_own_softmax() -> None:
    model = make("llama", "softmax")
    with torch.no_grad():
        ours = output(model, **inputs("llama"))
        model.set_attn_implementation("sdpa")
        torch.testing.assert_close(ours, output(model, **inputs("llama")), rtol=1e-4, atol=1e-4)
