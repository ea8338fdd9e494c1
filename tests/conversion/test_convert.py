"""Any torch model made linear: what is found, what it is replaced by, what is refused, and that it can be taken back."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lln
from lln.conversion import converted_sites, description, rebuild
from lln.conversion.sites import watching
from tests.conversion.models import Attention, Blocks, TwoInOne, batches, torch_encoder


def relative_error(out: Tensor, wanted: Tensor) -> float:
    return float((out - wanted).detach().norm() / wanted.detach().norm())


@pytest.mark.parametrize("make", [Blocks, torch_encoder], ids=["home-made", "torch's encoder"])
def test_attention_is_found_replaced_and_close(make: Any) -> None:
    model, data = make().eval(), batches()
    wanted = model(data[0])
    report = lln.convert(model, data, block_size=16)
    assert len(report.replaced) == 2 and not report.kept
    assert all(error is not None and 0 < error < 0.05 for error in report.replaced.values())
    assert 0 < relative_error(model(data[0]), wanted) < 0.05


def test_what_runs_is_near_far_attention_with_the_fitted_numbers() -> None:
    """Each site, given what softmax was given, gives what the public function gives."""
    model, data = Blocks().eval(), batches()
    original = copy.deepcopy(model)
    lln.convert(model, data, block_size=16, neighbours=1, first_tokens=2)
    sites = converted_sites(model)
    seen = []

    def compare(site: Any, call: Any, _: Tensor) -> None:
        (linear,) = sites[site.path]
        assert linear is not None
        own = linear.parameters_of_heads
        alpha, beta, bias = own.for_attention(torch.float32)
        near = {"block_size": 16, "neighbours": 1, "first_tokens": 2}
        wanted = lln.near_far_attention(
            call.q, call.k, call.v, alpha, beta, weights=own.weights, feature_bias=bias, **near
        )
        assert torch.equal(linear(call.q, call.k, call.v), wanted)
        seen.append(site.path)

    with watching(original, compare):
        original(data[0])
    assert seen == ["attention.0", "attention.1"]


def test_a_sequence_that_fits_its_block_is_softmax_still() -> None:
    model, data = Blocks().eval(), batches()
    wanted = model(data[0][:, :16])
    lln.convert(model, data, block_size=16)
    torch.testing.assert_close(model(data[0][:, :16]), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [Blocks, torch_encoder, lambda: torch_encoder(norm_first=True)])
def test_unloading_gives_the_model_back_bit_for_bit(make: Any) -> None:
    model, data = make().eval(), batches()
    wanted, keys = model(data[0]), list(model.state_dict())
    kinds = [type(module) for module in model.modules()]
    lln.convert(model, data, block_size=16)
    assert [key for key in model.state_dict() if "lln_sites" not in key] == keys  # torch's own names stay
    assert lln.unload(model) is model
    assert torch.equal(model(data[0]), wanted) and list(model.state_dict()) == keys
    assert [type(module) for module in model.modules()] == kinds
    lln.convert(model, data, block_size=16)  # and it can be converted again


def test_padding_does_not_count() -> None:
    model, data = torch_encoder(), batches()
    padding = torch.zeros(3, 80, dtype=torch.bool)
    padding[1, 50:] = True
    lln.convert(model, [{"src": x, "src_key_padding_mask": padding} for x in data], block_size=16)
    together = model(data[0], src_key_padding_mask=padding)
    torch.testing.assert_close(together[1:2, :50], model(data[0][1:2, :50]), rtol=1e-4, atol=1e-5)


def test_causal_models_stay_causal() -> None:
    model, data = Blocks(causal=True).eval(), batches()
    lln.convert(model, data, block_size=16)
    assert all(site is not None and site.options.causal for (site,) in converted_sites(model).values())
    x = data[0].clone()
    before = model(x)
    x[:, 60:] += 1
    assert torch.equal(model(x)[:, :60], before[:, :60])


def test_a_causal_mask_is_taken_for_what_it_is() -> None:
    model, data = torch_encoder(), batches()
    mask = nn.Transformer.generate_square_subsequent_mask(80)
    lln.convert(model, [{"src": x, "mask": mask, "is_causal": True} for x in data], block_size=16)
    assert all(site is not None and site.options.causal for (site,) in converted_sites(model).values())
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn: attention is bidirectional here, but was causal"):
        model(data[0])


def test_two_calls_in_one_module_and_a_context_of_another_length() -> None:
    model, data = nn.Sequential(TwoInOne()).eval(), batches()
    context = torch.randn(3, 50, 32)

    def run(x: Tensor) -> Any:
        return lambda model: model[0](x, context)

    wanted = run(data[0])(model)
    report = lln.convert(model, lambda model: [run(x)(model) for x in data], block_size=16)
    assert list(report.replaced) == ["0", "0 (call 2)"]
    assert all(error is not None and 0 < error < 1 for error in report.replaced.values())
    assert relative_error(run(data[0])(model), wanted) < 0.1


def test_a_model_that_is_an_attention_itself() -> None:
    model, data = Attention(32, 4).eval(), batches()
    wanted = model(data[0])
    report = lln.convert(model, data, block_size=16)
    assert list(report.replaced) == ["the model itself"]
    assert 0 < relative_error(model(data[0]), wanted) < 0.1
    again = rebuild(Attention(32, 4).eval(), description(model))
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(data[0]), model(data[0]))
    with pytest.raises(ValueError, match="the model itself: a bias on the scores"):
        model(data[0], torch.randn(80, 80))
    assert torch.equal(lln.unload(model)(data[0]), wanted)


def test_what_no_module_computes_is_left_alone() -> None:
    model, data = Blocks(layers=1).eval(), batches()

    def run(model: nn.Module) -> Tensor:
        x = model(data[0])[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x)

    report = lln.convert(model, run, block_size=16)
    assert list(report.replaced) == ["attention.0"] and report.kept == {
        "(outside)": "no module of the model computes it"
    }


def test_training_reaches_the_models_weights_and_the_new_numbers() -> None:
    model, data = Blocks(), batches()
    lln.convert(model, data, block_size=16)
    for site in (site for own in converted_sites(model).values() for site in own if site is not None):
        site.parameters_of_heads.trainable()
    model(data[0]).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in model.named_parameters() if "qkv.weight" in n)
    assert all(p.grad is not None for n, p in model.named_parameters() if n.endswith(("alpha", "weights")))


def test_copies_are_independent() -> None:
    model, data = Blocks().eval(), batches()
    lln.convert(model, data, block_size=16)
    twin = copy.deepcopy(model)
    wanted = model(data[0])
    assert torch.equal(twin(data[0]), wanted)
    lln.unload(model)
    assert torch.equal(twin(data[0]), wanted)


def test_a_whole_model_goes_through_a_file(tmp_path: Path) -> None:
    model, data = torch_encoder(), batches()
    lln.convert(model, data, block_size=16)
    torch.save(model, tmp_path / "whole.pt")
    again = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert torch.equal(again(data[0]), model(data[0])) and len(converted_sites(again)) == 2
    lln.unload(model)
    assert torch.equal(lln.unload(again)(data[0]), model(data[0]))


def test_a_compiled_model_gives_the_same() -> None:
    model, data = Blocks(layers=1).eval(), batches()
    lln.convert(model, data, block_size=16)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="eager")(data[0]), model(data[0]))


def test_half_precision_keeps_the_numbers_whole() -> None:
    model, data = Blocks().eval(), batches()
    lln.convert(model, data, block_size=16)
    wanted = model(data[0])
    model.bfloat16()
    (site,) = converted_sites(model)["attention.0"]
    assert site is not None and site.parameters_of_heads.alpha.dtype == torch.float32
    assert relative_error(model(data[0].bfloat16()).float(), wanted) < 0.05


class TestRefusals:
    def test_a_mask_of_single_pairs_names_the_place(self) -> None:
        model, data = Blocks().eval(), batches()
        lln.convert(model, data, block_size=16)
        with pytest.raises(ValueError, match=r"attention\.0: a mask of 80 x 80 that is neither padding nor causal"):
            model(data[0], torch.rand(80, 80) < 0.5)
        with pytest.raises(ValueError, match=r"attention\.0: a bias on the scores"):
            model(data[0], torch.randn(80, 80))

    def test_a_mask_of_single_pairs_keeps_softmax_in_conversion(self) -> None:
        model, data = Blocks().eval(), batches()
        with pytest.raises(
            ValueError, match=r"nothing in this model can be replaced: attention\.0: a bias on the scores"
        ):
            lln.convert(model, [(x, torch.randn(80, 80)) for x in data])
        assert not converted_sites(model)

    def test_no_attention(self) -> None:
        with pytest.raises(ValueError, match=r"no module called scaled_dot_product_attention"):
            lln.convert(nn.Linear(4, 4), [torch.randn(2, 4)])

    def test_converted_twice_and_unloaded_without(self) -> None:
        model = Blocks().eval()
        with pytest.raises(ValueError, match="was not converted"):
            lln.unload(model)
        lln.convert(model, batches(), block_size=16)
        with pytest.raises(ValueError, match="converted already"):
            lln.convert(model, batches())

    def test_one_tensor_for_a_list(self) -> None:
        with pytest.raises(TypeError, match="put it into a list"):
            lln.convert(Blocks(), torch.randn(2, 8, 32))
        with pytest.raises(ValueError, match="calibrate is empty"):
            lln.convert(Blocks(), [])

    @pytest.mark.parametrize("calibrate", [None, 3])
    def test_nothing_to_calibrate_on(self, calibrate: Any) -> None:
        with pytest.raises(TypeError, match="a list of batches, or a function that runs the model, got"):
            lln.convert(Blocks(), calibrate)

    def test_numbers_that_are_none(self) -> None:
        model, data = Blocks().eval(), batches()
        with pytest.raises(ValueError, match=r"attention\.0: queries or keys are not finite"):
            lln.convert(model, [data[0] * torch.nan])
        assert not converted_sites(model)

    def test_a_cache_of_keys(self) -> None:
        model = Blocks(layers=1, causal=True).eval()
        lln.convert(model, batches(), block_size=16)
        (site,) = converted_sites(model)["attention.0"]
        assert site is not None
        q, k = torch.randn(1, 4, 1, 8), torch.randn(1, 4, 9, 8)
        with pytest.raises(ValueError, match="1 queries for 9 keys: a cache of all keys, where .* has a state"):
            site(q, k, k)

    def test_inputs_with_labels(self) -> None:
        loader = [[x, torch.zeros(3)] for x in batches()]
        with pytest.raises(
            TypeError, match=r"taken for the arguments of the model, here 2: .* \[x for x, _ in loader\]"
        ):
            lln.convert(nn.Sequential(Blocks()), loader)

    def test_an_unknown_name_to_keep(self) -> None:
        model, data = Blocks().eval(), batches()
        with pytest.raises(
            ValueError, match=r"names 'nobody'; modules that compute attention are: attention\.0, attention\.1"
        ):
            lln.convert(model, data, keep_softmax=["nobody"])
        report = lln.convert(model, data, block_size=16, keep_softmax=["attention.1"])
        assert report.kept == {"attention.1": "as asked"} and list(report.replaced) == ["attention.0"]

    def test_a_module_of_torchs_itself(self) -> None:
        with pytest.raises(ValueError, match="an nn.MultiheadAttention itself"):
            lln.convert(nn.MultiheadAttention(8, 2), [torch.randn(2, 3, 8)])

    def test_a_failed_conversion_leaves_the_model_as_it_was(self) -> None:
        encoder = torch_encoder()
        with pytest.raises((RuntimeError, AssertionError)):
            lln.convert(encoder, [torch.randn(2, 8, 5)])
        assert type(encoder.layers[0].self_attn) is nn.MultiheadAttention
