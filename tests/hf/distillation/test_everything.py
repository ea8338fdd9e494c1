"""All weights of a converted Hugging Face model learn to follow what it was."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from lln.hf import convert, unload
from lln.hf.distillation.distil import distil
from tests.hf.distillation.test_distil import batches, converted, softmax_model
from tests.hf.models import inputs, output

OPTIONS: dict[str, Any] = {"learn": "everything", "stage": "end_to_end", "progress": False}


def sharp() -> Any:
    """Sharper than it starts, so that softmax is something to follow."""
    model = softmax_model("bert")
    for layer in model.encoder.layer:
        layer.attention.self.query.weight.data *= 12
    return model


@torch.no_grad()
def error(model: Any, wanted: Any) -> float:
    return float((output(model, **inputs("bert")) - output(wanted, **inputs("bert"))).square().sum())


def test_the_model_comes_nearer_and_is_saved_as_it_is(tmp_path: Path) -> None:
    original, errors = sharp(), list[float]()
    model = convert(sharp(), "lln_near_far", [inputs("bert")], block_size=8)
    before, weight = error(model, original), model.encoder.layer[0].output.dense.weight.clone()
    distil(
        model, [inputs("bert")], steps=30, end_to_end_lr=1e-3, on_step=lambda *x: errors.append(x[2][0]), **OPTIONS
    )  # fmt: skip
    assert errors[-1] < 0.5 * errors[0] and error(model, original) < before
    assert not torch.equal(model.encoder.layer[0].output.dense.weight, weight)
    model.save_pretrained(tmp_path)
    assert error(AutoModel.from_pretrained(tmp_path).eval(), model) == 0
    assert error(unload(model), original) > 0  # softmax again, with what it learned


def test_the_teacher_does_not_learn() -> None:
    """With no more than one pass over a group the teacher runs again and again: a model that taught itself would drift."""
    model, given = converted(attention="lln_near_far"), batches()
    own, teacher = softmax_model("bert"), softmax_model("bert")
    errors: list[float] = []
    fixed: list[float] = []
    steps: dict[str, Any] = {"steps": 8, "group": 1, "passes": 1, "end_to_end_lr": 3e-3, **OPTIONS}
    distil(model, given, on_step=lambda *x: errors.append(x[2][0]), **steps)
    distil(
        converted(attention="lln_near_far"), given, teacher=teacher, on_step=lambda *x: fixed.append(x[2][0]), **steps
    )
    assert errors == pytest.approx(fixed, rel=1e-4)
    assert all(torch.equal(x, y) for x, y in zip(teacher.parameters(), own.parameters(), strict=True))


def test_an_interrupted_run_leaves_all_weights_as_they_were() -> None:
    model = converted(attention="lln_near_far")
    before = {name: x.clone() for name, x in model.state_dict().items()}

    def stop(_: str, step: int, __: list[float]) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil(model, batches(), steps=4, on_step=stop, **OPTIONS)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_what_does_not_go_together_is_refused() -> None:
    model = converted()
    with pytest.raises(ValueError, match="stage must be 'end_to_end', got 'layers'"):
        distil(model, batches(), learn="everything", stage="layers", progress=False)
    with pytest.raises(ValueError, match="leave it out of 'everything'"):
        distil(model, batches(), low_rank=2, **OPTIONS)
    with pytest.raises(ValueError, match="learn must be 'everything' or name some of alpha"):
        distil(model, batches(), learn=["everything", "alpha"], stage="end_to_end", progress=False)
    with pytest.raises(ValueError, match="lr is of single layers"):
        distil(model, batches(), lr=1e-3, **OPTIONS)
    with pytest.raises(ValueError, match="a model cannot be its own teacher"):
        distil(model, batches(), teacher=model, **OPTIONS)
    with pytest.raises(ValueError, match="leave maps='free' out of 'everything'"):
        distil(model, batches(), maps="free", **OPTIONS)
