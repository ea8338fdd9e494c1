"""All weights of a converted model learn to follow what it was."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lln
import lln.conversion
from lln.conversion.distil import relative_error
from tests.conversion.test_distil import DATA, fresh

OPTIONS: dict[str, Any] = {"learn": "everything", "stage": "end_to_end", "end_to_end_lr": 6e-3}


def linear(attention: str = "lln_near_far") -> nn.Module:
    model = fresh()
    lln.convert(model, DATA, attention=attention, **({"block_size": 16} if attention == "lln_near_far" else {}))
    return model


@torch.no_grad()
def error(model: nn.Module, original: nn.Module) -> float:
    return float(sum(relative_error(model(x), original(x)) for x in DATA))


def own_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in model.named_parameters() if "lln_sites" not in name}


@pytest.mark.parametrize("attention", ["lln_near_far", "elu"])  # the second has nothing of its own to learn
def test_the_model_comes_nearer_to_what_it_was(attention: str) -> None:
    original, model = fresh(), linear(attention)
    before, weights = error(model, original), own_weights(model)
    lln.conversion.distil(model, DATA, steps=40, **OPTIONS)
    assert error(model, original) < 0.75 * before
    assert all(not torch.equal(x, weights[name]) for name, x in own_weights(model).items() if x.dim() == 2)
    learned = own_weights(model)
    lln.unload(model)
    assert all(torch.equal(x, learned[name]) for name, x in model.named_parameters())


def test_the_teacher_is_the_model_before_the_first_step() -> None:
    """A model that taught itself would change what it is to learn: the loss is against the original's outputs throughout."""
    original, asked = fresh(), []

    def loss(given: Tensor, wanted: Tensor, batch: Tensor) -> Tensor:
        asked.append(float((wanted - original(batch)).detach().abs().max()))
        return relative_error(given, wanted)

    lln.conversion.distil(linear(), DATA, steps=6, passes=1, group=1, loss=loss, **OPTIONS)
    assert len(asked) == 6 and max(asked) < 1e-5


def test_an_interrupted_run_leaves_all_weights_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    whole, model = linear(), linear()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    steps: dict[str, Any] = {"steps": 6, "checkpoint_every": 2, **OPTIONS}
    lln.conversion.distil(whole, DATA, **steps)

    def stop(_: str, step: int, __: float) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lln.conversion.distil(model, DATA, checkpoint=tmp_path, on_step=stop, **steps)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    lln.conversion.distil(model, DATA, checkpoint=tmp_path, **steps)
    assert all(torch.equal(x, whole.state_dict()[name]) for name, x in model.state_dict().items())
    with pytest.raises(ValueError, match="is of another model: parameters differ"):
        lln.conversion.distil(linear(), DATA, checkpoint=tmp_path, **(steps | {"learn": "added"}))


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ValueError, match="stage must be 'end_to_end', got 'both'"):
        lln.conversion.distil(linear(), DATA, learn="everything")
    with pytest.raises(ValueError, match="learn must be 'added' or 'everything', got 'all'"):
        lln.conversion.distil(linear(), DATA, learn="all")
    model = linear()
    with pytest.raises(ValueError, match="lr is of single layers"):
        lln.conversion.distil(model, DATA, lr=1e-3, **OPTIONS)
    with pytest.raises(ValueError, match="a model cannot be its own teacher"):
        lln.conversion.distil(model, DATA, teacher=model, **OPTIONS)
