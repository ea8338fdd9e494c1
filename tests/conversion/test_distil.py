"""Any converted model is trained towards its softmax original, or towards what the caller says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lln
from lln.conversion import converted_sites, distil, softmax_again
from lln.conversion.distil import relative_error
from lln.conversion.linear_site import LinearSite
from lln.near_far import NEUTRAL
from tests.conversion.models import Blocks, batches, torch_encoder

DATA = batches(4)


def fresh() -> Blocks:
    torch.manual_seed(3)
    model = Blocks().eval()
    for attention in model.attention:  # sharper than torch starts them, so that softmax is something to follow
        attention.qkv.weight.data[:64] *= 4
    return model


def error(model: nn.Module) -> float:
    with torch.no_grad():
        x = batches(5)[4]
        with softmax_again(model):
            wanted = model(x)
        return float(relative_error(model(x), wanted))


def test_learned_maps_come_nearer_to_softmax_on_inputs_they_have_not_seen() -> None:
    model = fresh()
    lln.convert(model, DATA, attention="hedgehog")
    before, frozen = error(model), {name: x.clone() for name, x in fresh().state_dict().items()}
    seen: list[str] = []
    distil(model, DATA, steps=60, lr=3e-2, on_step=lambda stage, *_: seen.append(stage))
    assert error(model) < 0.95 * before
    assert seen == ["layers"] * 20 + ["end_to_end"] * 40
    assert not any(x.requires_grad for name, x in model.named_parameters() if "lln_sites" in name)
    assert all(x.requires_grad for name, x in model.named_parameters() if "lln_sites" not in name)
    lln.unload(model)
    assert all(torch.equal(x, frozen[name]) for name, x in model.state_dict().items())


def test_distillation_finds_what_the_closed_form_found() -> None:
    model = fresh()
    lln.convert(model, DATA, block_size=16)
    fitted = error(model)
    for sites in converted_sites(model).values():
        for own in (site.parameters_of_heads for site in sites if isinstance(site, LinearSite)):
            own.set(alpha=own.alpha / 2, weights=torch.tensor(NEUTRAL))
    spoilt = error(model)
    distil(model, DATA, steps=60, lr=3e-2, stage="layers")
    assert spoilt > 1.2 * fitted and error(model) < 1.02 * fitted


def test_a_loss_and_a_teacher_of_the_callers() -> None:
    model, teacher = fresh(), torch_encoder()
    lln.convert(model, DATA, block_size=16)
    asked: list[Any] = []

    def loss(given: Tensor, wanted: Tensor, batch: Tensor) -> Tensor:
        asked.append((wanted.shape, batch.shape))
        with torch.no_grad():
            torch.testing.assert_close(wanted, teacher(batch))
        return (given.mean(1) - wanted.mean(1)).square().mean()

    values: list[float] = []
    own: dict[str, Any] = {"teacher": teacher, "loss": loss, "on_step": lambda *x: values.append(x[2])}
    distil(model, DATA[:1], steps=12, lr=5e-2, stage="end_to_end", **own)
    assert len(asked) == 12 and values[-1] < values[0]


def test_a_model_is_softmax_again_while_it_teaches() -> None:
    model, x = fresh(), DATA[0]
    lln.convert(model, DATA, block_size=16)
    linear = model(x)
    with softmax_again(model):
        assert torch.equal(model(x), fresh()(x))
    assert torch.equal(model(x), linear)


def test_an_interrupted_run_goes_on_and_ends_as_it_would_have(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    options: dict[str, Any] = {"steps": 9, "group": 2, "passes": 2, "checkpoint_every": 2}
    whole = fresh()
    lln.convert(whole, DATA, block_size=16)
    start = {name: x.clone() for name, x in whole.state_dict().items()}
    distil(whole, DATA, **options)

    def stop(stage: str, step: int, _: float) -> None:
        if (stage, step) == ("end_to_end", 3):
            raise KeyboardInterrupt

    model, rest = fresh(), []
    lln.convert(model, DATA, block_size=16)
    with pytest.raises(KeyboardInterrupt):
        distil(model, DATA, checkpoint=tmp_path, on_step=stop, **options)
    assert all(torch.equal(x, start[name]) for name, x in model.state_dict().items())
    distil(model, DATA, checkpoint=tmp_path, on_step=lambda *x: rest.append(x[:2]), **options)
    assert rest == [("end_to_end", step) for step in range(2, 6)]
    assert all(torch.equal(x, whole.state_dict()[name]) for name, x in model.state_dict().items())
    with pytest.raises(ValueError, match="written with other settings .*data_hash"):
        distil(model, DATA[:3], checkpoint=tmp_path, **options)
    lln.unload(model)
    lln.convert(model, DATA, block_size=8)
    with pytest.raises(ValueError, match="written with other settings .*conversion_hash"):
        distil(model, DATA, checkpoint=tmp_path, **options)


def test_modes_and_what_learns_are_as_they_were() -> None:
    model = fresh().train()
    model.feed[0].eval()
    lln.convert(model, DATA, block_size=16)
    model.attention[0].qkv.weight.requires_grad_(False)
    before = [(x.requires_grad, x.grad) for x in model.parameters()], [module.training for module in model.modules()]
    distil(model, DATA, steps=2, stage="layers")
    assert before == ([(x.requires_grad, x.grad) for x in model.parameters()], [m.training for m in model.modules()])


def test_what_cannot_be_distilled_is_refused() -> None:
    with pytest.raises(ValueError, match="convert the model first"):
        distil(fresh(), DATA)
    model = fresh()
    lln.convert(model, DATA, attention="elu")
    with pytest.raises(ValueError, match="nothing to distil"):
        distil(model, DATA)
    lln.unload(model)
    lln.convert(model, DATA, block_size=16)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"group": 0}, "group must be a whole number"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"stage": "all"}, "stage must be one of"),
    ]
    for wrong, message in refused:
        with pytest.raises(ValueError, match=message):
            distil(model, DATA, **wrong)
    for number in (3.0, torch.tensor(3.0), torch.zeros(2, requires_grad=True)):
        with pytest.raises(ValueError, match="loss must return one number that depends on the model's output"):
            distil(model, DATA, stage="end_to_end", steps=1, loss=lambda *_, found=number: found)  # type: ignore[misc]
    with pytest.raises(TypeError, match="batches must be a list of batches, got one Tensor: put it into a list"):
        distil(model, DATA[0])
    with pytest.raises(ValueError, match="batches is empty"):
        distil(model, [])
    with pytest.raises(ValueError, match="no floating-point tensor"):
        relative_error("text", "text")
