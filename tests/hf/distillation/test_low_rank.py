"""Low-rank updates of the projections: learned with the rest, added to the weights, invisible to the teacher."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from lln.hf.distillation.distil import distil
from lln.hf.distillation.low_rank import LowRank
from tests.hf.distillation.test_distil import batches, converted, parameters
from tests.hf.models import inputs, output

RANK = 2
OPTIONS: dict[str, Any] = {"steps": 12, "progress": False, "low_rank": RANK}


@pytest.fixture(autouse=True)
def peft() -> None:
    pytest.importorskip("peft")


def projections(model: Any) -> dict[str, torch.Tensor]:
    names = (
        "query.weight",
        "key.weight",
        "value.weight",
        "q_proj.weight",
        "k_proj.weight",
        "v_proj.weight",
        "o_proj.weight",
    )
    return {name: x.detach().clone() for name, x in model.named_parameters() if name.endswith(names)}


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_projections_change_by_no_more_than_the_rank(family: str) -> None:
    model = converted(family)
    before = {name: x.detach().clone() for name, x in model.named_parameters() if ".lln." not in name}
    distil(model, batches(family), **OPTIONS)
    after = dict(model.named_parameters())
    changed = projections(model)
    assert changed and not any("lora" in name for name in after)
    for name, x in before.items():
        assert torch.equal(after[name], x) == (name not in changed), name
        if name in changed:
            assert torch.linalg.matrix_rank(after[name] - x, rtol=1e-3) <= RANK


def test_updates_can_be_all_that_learns() -> None:
    model = converted()
    before, own = projections(model), parameters(model)
    distil(model, batches(), **OPTIONS, stage="end_to_end", learn=())
    assert all(torch.equal(x.expand_as(parameters(model)[name]), parameters(model)[name]) for name, x in own.items())
    assert not any(torch.equal(x, projections(model)[name]) for name, x in before.items())


def test_updates_bring_the_model_closer_than_it_comes_without(tmp_path: Path) -> None:
    errors: dict[int | None, list[float]] = {}
    for rank in (None, 4):
        found = errors.setdefault(rank, [])
        distil(
            converted(), batches(), steps=40, stage="end_to_end", progress=False, low_rank=rank,
            on_step=lambda _, __, error, found=found: found.append(error[0]),
        )  # fmt: skip
    assert errors[4][0] == pytest.approx(errors[None][0], rel=1e-5)  # they start at zero
    assert errors[4][-1] < errors[None][-1]


def test_the_teacher_does_not_see_the_updates() -> None:
    model = converted()
    with torch.no_grad():
        before = output(model, **inputs("bert"))
        updates = LowRank(model, RANK, seed=0)
        for name, x in updates.parameters.items():
            if "lora_B" in name:
                x.fill_(0.3)
        assert not torch.allclose(output(model, **inputs("bert")), before)
        with updates.off():
            assert torch.equal(output(model, **inputs("bert")), before)
        updates.remove()
        assert torch.equal(output(model, **inputs("bert")), before)


def test_what_is_wanted_stays_what_the_original_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    from lln.hf.distillation.teacher import Teacher

    seen: list[torch.Tensor] = []
    wanted = Teacher.output

    def watch(self: Teacher, batch: Any) -> Any:
        found = wanted(self, batch)
        seen.append(found.last_hidden_state)
        return found

    monkeypatch.setattr(Teacher, "output", watch)
    distil(converted(), [inputs("bert")], steps=6, stage="end_to_end", passes=1, progress=False, low_rank=RANK)
    assert len(seen) == 6 and all(torch.equal(x, seen[0]) for x in seen)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = distil(converted(), batches(), **OPTIONS)
    stopped = converted()
    before = projections(stopped)

    def interrupt(stage: str, step: int, _: Any) -> None:
        if (stage, step) == ("end_to_end", 4):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil(stopped, batches(), checkpoint=tmp_path, checkpoint_every=1, on_step=interrupt, **OPTIONS)
    assert all(torch.equal(x, before[name]) for name, x in projections(stopped).items())
    resumed = distil(converted(), batches(), checkpoint=tmp_path, checkpoint_every=1, **OPTIONS)
    for (name, x), y in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


def test_a_model_with_updates_is_restored_by_from_pretrained(tmp_path: Path) -> None:
    model = distil(converted(), batches(), **OPTIONS)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        loaded = AutoModel.from_pretrained(tmp_path).eval()
        assert torch.equal(output(loaded, **inputs("bert")), output(model, **inputs("bert")))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"low_rank": 0}, "low_rank must be a whole number"), ({"low_rank": 2, "stage": "layers"}, "learned end to end")],
)
def test_wrong_arguments_are_refused_in_words(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        distil(converted(), batches(), progress=False, **options)


def test_a_model_without_linear_projections_is_refused() -> None:
    with pytest.raises(ValueError, match="no linear projections"):
        distil(converted("gpt2"), batches("gpt2"), **OPTIONS)


def test_without_peft_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    model = converted()
    wanted = {name: x.requires_grad for name, x in model.named_parameters() if ".lln." not in name}
    with pytest.raises(ImportError, match="pip install peft"):
        distil(model, batches(), **OPTIONS)
    assert wanted == {name: x.requires_grad for name, x in model.named_parameters() if ".lln." not in name}
