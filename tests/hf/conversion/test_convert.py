"""Converting a softmax model: measured on data, saved with the model, restored by plain from_pretrained, undone exactly."""

from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, BertForMaskedLM

from lln.conversion.pooled_statistics import PooledStatistics
from lln.hf import LayerShape, LLNOptions, LLNParameters, convert, unload
from lln.hf.conversion.batches import batches_of
from lln.hf.conversion.mix_fit import MixFit
from lln.hf.conversion.watching import watching
from lln.hf.modules import attention_modules
from lln.ops.moments.statistics import statistics_of
from tests.hf.models import CAUSAL, FAMILIES, inputs, make, output


def _softmax_model(family: str) -> Any:
    model = make(family, "sdpa")
    del model.config.lln
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_model_is_restored_by_from_pretrained(family: str, tmp_path: Any) -> None:
    model = convert(_softmax_model(family), calibrate=[inputs(family)], block_size=8)
    model.save_pretrained(tmp_path)
    kind = AutoModelForCausalLM if family in CAUSAL else AutoModel
    loaded = kind.from_pretrained(tmp_path).eval()
    assert loaded.config._attn_implementation == "lln_diag"
    with torch.no_grad():
        assert torch.equal(output(loaded, **inputs(family)), output(model, **inputs(family)))


@pytest.mark.parametrize("family", FAMILIES)
def test_unload_gives_the_softmax_back_bit_for_bit(family: str) -> None:
    model = _softmax_model(family)
    names = set(model.state_dict())
    with torch.no_grad():
        before = output(model, **inputs(family))
        convert(model, calibrate=[inputs(family)], block_size=8)
        converted = output(model, **inputs(family))
        unload(model)
        assert torch.equal(output(model, **inputs(family)), before)
    assert not torch.equal(converted, before)
    assert set(model.state_dict()) == names and not hasattr(model.config, "lln")


def test_the_base_model_of_a_converted_head_model_loads(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(_softmax_model("bert").config).eval()
    convert(model, calibrate=[inputs("bert")], block_size=8).save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path, add_pooling_layer=False).eval()
    for own, loaded in zip(attention_modules(model), attention_modules(base), strict=True):
        assert torch.equal(own.lln.alpha, loaded.lln.alpha) and torch.equal(own.lln.mix, loaded.lln.mix)


def test_softmax_can_be_asked_for_at_loading(tmp_path: Any) -> None:
    model = _softmax_model("bert")
    with torch.no_grad():
        before = output(model, **inputs("bert"))
        convert(model, calibrate=[inputs("bert")], block_size=8).save_pretrained(tmp_path)
        with pytest.warns(UserWarning, match="saved with attn_implementation='lln_diag'"):
            loaded = AutoModel.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
        torch.testing.assert_close(output(loaded, **inputs("bert")), before)


def test_keeping_every_layer_but_one_changes_that_one_only() -> None:
    model = _softmax_model("bert")
    convert(model, calibrate=[inputs("bert")], keep_softmax=[-1], block_size=8)
    first, last = attention_modules(model)
    assert isinstance(first.lln, LLNParameters)
    assert last.lln_keeps_softmax and getattr(last, "lln", None) is None


@pytest.mark.parametrize("attention", ["lln", "lln_diag"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_packed_batches_calibrate_as_their_rows_do_one_by_one(family: str, attention: str) -> None:
    batch = inputs(family, batch=2, length=24)
    batch["position_ids"] = torch.cat([torch.arange(9), torch.arange(15)]).repeat(2, 1)
    rows = [{name: x[i : i + 1] for name, x in batch.items()} for i in range(2)]
    together, apart = (
        convert(_softmax_model(family), attention, calibrate=data, block_size=4) for data in ([batch], rows)
    )
    for one, other in zip(attention_modules(together), attention_modules(apart), strict=True):
        assert not torch.equal(one.lln.alpha, torch.ones_like(one.lln.alpha))
        for name, x in one.lln.named_parameters():
            torch.testing.assert_close(x, other.lln.get_parameter(name), rtol=1e-4, atol=1e-5)


def test_fitting_brings_the_output_closer() -> None:
    """On the very data it was fitted to, the error of each layer's attention falls."""
    errors = {}
    for fit in (False, True):
        model = _softmax_model("bert")
        convert(model, calibrate=[inputs("bert", batch=8, length=64)], block_size=8, fit=fit)
        errors[fit] = _attention_error(model, inputs("bert", batch=8, length=64))
    assert errors[True] < 0.95 * errors[False]


def _attention_error(model: Any, given: dict[str, torch.Tensor]) -> float:
    """|LLN+Diag - softmax|^2 / |softmax|^2 with the original model's activations as input, over all layers."""
    from lln.hf.attention.functions import attend

    parts = []

    def watch(call: Any, out: torch.Tensor) -> None:
        parts.append(((attend(call, "lln_diag")[0] - out).square().sum() / out.square().sum()).item())

    with torch.no_grad(), watching(model, watch):
        model(**given)
    return sum(parts) / len(parts)


def test_the_mixing_weight_is_the_least_squares_one() -> None:
    lln, blocks = torch.randn(2, 3, 10, 4), torch.randn(2, 3, 10, 4)
    target = 0.3 * lln + 0.7 * blocks
    rows = torch.ones(2, 10, dtype=torch.bool)
    rows[0, 6:] = False
    target[0, :, 6:] = 100.0  # padding must not count
    fit = MixFit((1.0,))
    fit.add(0, target, lln, blocks, rows)
    factor, mix, error = fit.best(key_heads=3, mixing=True)
    torch.testing.assert_close(mix, torch.full((3,), 0.3, dtype=torch.float64))
    assert error.max() < 1e-6 and factor.tolist() == [1.0, 1.0, 1.0]


def test_pooled_statistics_equal_those_of_everything_at_once() -> None:
    pooled, calls = PooledStatistics(), []

    def watch(call: Any, _: torch.Tensor) -> None:
        calls.append(call)

    model = _softmax_model("bert")
    ids = inputs("bert", batch=6)["input_ids"]
    with torch.no_grad(), watching(model, watch):
        for part in ids.split(2):
            model(part)
    first = [c for c in calls if c.module is calls[0].module]
    for call in first:
        pooled.add(call)
    q, k = (torch.cat([getattr(c, n) for c in first]).transpose(0, 1).flatten(1, 2)[None] for n in "qk")
    for center in (False, True):
        whole, got = statistics_of(q, k, center_keys=center), pooled.result(center)
        torch.testing.assert_close(got.var_k, whole.var_k)
        torch.testing.assert_close(got.var_q, whole.var_q)
        torch.testing.assert_close(got.mean_key, whole.mean_key)


def test_maps_act_on_the_lln_branch_and_learn() -> None:
    model = convert(_softmax_model("bert"), calibrate=[inputs("bert")], maps=True, block_size=8)
    given = inputs("bert")
    with torch.no_grad():
        before = output(model, **given)
    for module in attention_modules(model):
        module.lln.trainable()
    output(model, **given).square().mean().backward()
    for module in attention_modules(model):
        for name, parameter in module.lln.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
        module.lln.set(query_map=1.5 * torch.eye(8).repeat(4, 1, 1))
    with torch.no_grad():
        assert not torch.allclose(output(model, **given), before)


def test_maps_generate_the_same_with_and_without_cache() -> None:
    model = convert(_softmax_model("llama"), calibrate=[inputs("llama")], maps=True, block_size=8)
    for module in attention_modules(model):
        module.lln.set(query_map=torch.randn(4, 8, 8) / 2, key_map=torch.randn(2, 8, 8) / 2)
    ids = inputs("llama")["input_ids"]
    made = [
        model.generate(ids, attention_mask=torch.ones_like(ids), use_cache=c, max_new_tokens=12, do_sample=False)
        for c in (True, False)
    ]
    assert torch.equal(*made)


def test_without_data_each_sample_is_matched_when_it_comes() -> None:
    model = convert(_softmax_model("bert"))
    assert LLNOptions.from_dict(model.config.lln).subtract_mean_key
    assert output(model, **inputs("bert")).isfinite().all()
    with pytest.raises(ValueError, match="calibrate"):
        convert(_softmax_model("llama"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attention": "nobody"}, "'lln', 'lln_diag'"),
        ({"keep_softmax": [7]}, "0 to 1"),
        ({"calibrate": []}, "empty"),
        ({"calibrate": ["a text"]}, "tokenizer"),
        ({"calibrate": [3]}, "dictionaries of tensors"),
        ({"keep_softmax": [0, 1]}, "nothing to convert"),
    ],
)
def test_wrong_conversions_are_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        convert(_softmax_model("bert"), **{"calibrate": [inputs("bert")], **options})


def test_converting_twice_is_refused() -> None:
    model = convert(_softmax_model("bert"), calibrate=[inputs("bert")], block_size=8)
    with pytest.raises(ValueError, match="converted already"):
        convert(model, calibrate=[inputs("bert")])


def test_a_config_for_another_model_is_refused() -> None:
    config = _softmax_model("bert").config
    config.lln = LLNOptions(layers=[LayerShape(4, 4, 8)]).to_dict()
    with pytest.raises(ValueError, match="describes 1 attention modules"):
        AutoModel.from_config(config)


def test_tensors_are_taken_as_the_models_main_input() -> None:
    model = _softmax_model("vit")
    assert set(batches_of([torch.randn(1, 3, 32, 32)], model)[0]) == {"pixel_values"}


@pytest.mark.parametrize("fit", [False, True])
def test_a_shift_of_all_keys_leaves_a_converted_model_as_softmax_leaves_it(fit: bool) -> None:
    """Softmax does not see a constant added to every key; with the mean key subtracted LLN does not either."""
    outputs = []
    for shift in (0.0, 3.0):
        model = _softmax_model("bert")
        with torch.no_grad():
            for module in attention_modules(model):
                module.key.bias.add_(
                    shift * torch.linspace(-1, 1, 32)
                )  # one for each feature: a common one cancels anyway
            convert(model, calibrate=[inputs("bert")], block_size=8, fit=fit)
            outputs.append(output(model, **inputs("bert")))
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-3)


def test_unload_gives_softmax_back_however_the_model_came_to_lln() -> None:
    model = _softmax_model("bert")
    before = model.config._attn_implementation
    convert(model, block_size=8)  # unmeasured
    convert(model, calibrate=[inputs("bert")])
    assert unload(model).config._attn_implementation == before
    model.set_attn_implementation("lln_diag")
    assert unload(convert(model, calibrate=[inputs("bert")], block_size=8)).config._attn_implementation == "sdpa"


def test_convert_takes_what_the_config_says_unless_told() -> None:
    model = _softmax_model("bert")
    model.config.lln = {"block_size": 8, "mix": 0.3, "target": "variance"}
    convert(model, calibrate=[inputs("bert")], fit=False)
    assert model.config.lln["block_size"] == 8 and model.config.lln["target"] == "variance"
    assert float(attention_modules(model)[0].lln.mix[0]) == pytest.approx(0.3)  # type: ignore[union-attr, index]
    assert convert(unload(model), calibrate=[inputs("bert")], block_size=16).config.lln["block_size"] == 16


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("reviews.txt", "got one str"),
        ({"input_ids": torch.ones(1, 4, dtype=torch.long)}, "got one dict"),
        (torch.ones(1, 4, dtype=torch.long), "got one Tensor"),
        ([[torch.ones(2, 4), torch.ones(2, 4)]], "got list"),
    ],
)
def test_what_is_no_list_of_batches_is_refused(given: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        convert(_softmax_model("bert"), calibrate=given, tokenizer=lambda *_, **__: {})


def test_nothing_but_padding_is_refused() -> None:
    ids = inputs("bert")["input_ids"]
    with pytest.raises(ValueError, match="nothing but padding"):
        convert(_softmax_model("bert"), calibrate=[{"input_ids": ids, "attention_mask": torch.zeros_like(ids)}])


def test_texts_are_padded_on_the_right() -> None:
    """Rotary positions would move with padding on the left, and LLN sees them."""
    sides = []

    def tokenizer(texts: list[str], **options: Any) -> dict[str, torch.Tensor]:
        sides.append(options["padding_side"])
        return {"input_ids": torch.ones(len(texts), 4, dtype=torch.long)}

    batches_of(["a", "b"], _softmax_model("llama"), tokenizer)
    assert sides == ["right"]


def test_a_conversion_that_fails_leaves_the_model_as_it_was() -> None:
    model = _softmax_model("bert")
    model.config.lln = {"block_size": 8}
    keys = list(model.state_dict())
    with torch.no_grad():
        model.encoder.layer[1].attention.self.key.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"encoder\.layer\.1\.attention\.self: queries or keys are not finite"):
        convert(model, calibrate=[inputs("bert")])
    assert list(model.state_dict()) == keys and model.config.lln == {"block_size": 8}
    assert model.config._attn_implementation == "sdpa" and not hasattr(model, "lln_before")
