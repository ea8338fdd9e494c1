"""Distillation: a converted model learns to follow its softmax original, and a run can stop and go on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from lln.conversion.plan import Plan
from lln.hf import convert, unload
from lln.hf.distillation.distil import distil
from lln.hf.distillation.maps import make_room
from tests.hf.models import inputs, make, output

STEPS = 24


def softmax_model(family: str) -> Any:
    model = make(family, "sdpa")
    del model.config.lln
    return model


def converted(family: str = "bert", attention: str = "lln_diag", **options: Any) -> Any:
    return convert(softmax_model(family), attention, [inputs(family)], block_size=8, **options)


def batches(family: str = "bert") -> list[dict[str, Any]]:
    """Two batches, one of them padded."""
    first, second = inputs(family), inputs(family, batch=2, length=17)
    if "input_ids" in first:
        mask = torch.ones(2, 17, dtype=torch.long)
        mask[0, 11:] = 0
        second["attention_mask"] = mask
    return [first, second]


def parameters(model: Any) -> dict[str, torch.Tensor]:
    return {name: x.detach().clone() for name, x in model.named_parameters() if ".lln." in name}


@pytest.mark.parametrize("family", ["bert", "modernbert", "vit", "llama", "gpt2"])
@pytest.mark.parametrize("stage", ["layers", "end_to_end"])
def test_the_error_falls(family: str, stage: str) -> None:
    errors: list[float] = []
    distil(
        converted(family), [inputs(family)], steps=STEPS, stage=stage, progress=False,
        on_step=lambda _, __, found: errors.append(sum(found)),
    )  # fmt: skip
    assert len(errors) == STEPS and errors[-1] < 0.85 * errors[0], errors


@pytest.mark.parametrize("stage", ["layers", "end_to_end"])
def test_bfloat16_is_for_the_model_end_to_end_and_not_for_its_teacher(stage: str) -> None:
    model, seen = converted(attention="lln_near_far"), set()
    model.encoder.layer[0].attention.self.query.register_forward_hook(
        lambda _, __, out: seen.add((out.dtype, torch.is_grad_enabled()))
    )
    distil(model, [inputs("bert")], steps=1, stage=stage, precision="bfloat16", progress=False)
    assert seen == {(torch.float32, False)} | ({(torch.bfloat16, True)} if stage == "end_to_end" else set())
    assert all(x.dtype == torch.float32 for x in model.parameters())


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision must be one of 'float32', 'bfloat16', got 'float16'"):
        distil(converted(), [inputs("bert")], precision="float16", progress=False)


@pytest.mark.parametrize("maps", ["free", "folded", None])
def test_the_model_comes_closer_to_the_original(maps: str | None) -> None:
    original = softmax_model("bert")
    given = batches()
    model = converted()
    with torch.no_grad():
        wanted = [output(original, **b) for b in given]
        before = sum(float((output(model, **b) - w).square().sum()) for b, w in zip(given, wanted, strict=True))
        distil(model, given, steps=STEPS, maps=maps, progress=False)
        after = sum(float((output(model, **b) - w).square().sum()) for b, w in zip(given, wanted, strict=True))
    assert after < 0.9 * before


@pytest.mark.parametrize("maps", ["free", "folded"])
@pytest.mark.parametrize("stops_at", [5, 16, 21])  # within the layers, where the stages meet, end to end
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(maps: str, stops_at: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "steps": STEPS, "maps": maps, "progress": False, "group": 2, "passes": 2, "checkpoint_every": 1
    }  # fmt: skip
    whole = distil(converted(), batches(), **options)
    seen: list[int] = []

    def interrupt(*_: Any) -> None:
        seen.append(1)
        if len(seen) == stops_at + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil(converted(), batches(), checkpoint=tmp_path, on_step=interrupt, **options)
    rest: list[int] = []
    resumed = distil(
        converted(), batches(), checkpoint=tmp_path, on_step=lambda *_: rest.append(1), **options
    )  # fmt: skip
    assert len(rest) == STEPS - stops_at
    for (name, x), y in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


def test_resume_false_begins_anew(tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 4, "stage": "layers", "progress": False, "checkpoint": tmp_path}
    distil(converted(), batches(), **options)
    steps: list[int] = []
    distil(converted(), batches(), resume=False, on_step=lambda _, step, __: steps.append(step), **options)
    assert steps == [0, 1, 2, 3]


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    distil(converted(), batches(), steps=4, stage="layers", progress=False, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"stages={'layers': 4} there, {'layers': 5} here"):
        distil(converted(), batches(), steps=5, stage="layers", progress=False, checkpoint=tmp_path)


@pytest.mark.parametrize("maps", ["free", "folded", None])
def test_a_distilled_model_is_restored_by_from_pretrained(maps: str | None, tmp_path: Path) -> None:
    model = distil(converted(), batches(), steps=6, maps=maps, progress=False)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(output(loaded, **inputs("bert")), output(model, **inputs("bert")))


def test_the_weights_of_the_model_are_not_touched_by_free_maps() -> None:
    model = softmax_model("bert")
    with torch.no_grad():
        before = output(model, **inputs("bert"))
        convert(model, calibrate=[inputs("bert")], block_size=8)
        distil(model, batches(), steps=6, progress=False)
        assert torch.equal(output(unload(model), **inputs("bert")), before)


@pytest.mark.parametrize("learned", ["alpha", "beta", "feature_bias", "mix", "maps"])
def test_only_what_is_named_learns(learned: str) -> None:
    model = converted()
    make_room(model, "free" if learned == "maps" else None)
    before = parameters(model)
    distil(model, batches(), steps=4, learn=[learned], progress=False)
    names = {"maps": ("query_map", "key_map")}.get(learned, (learned,))
    for name, x in parameters(model).items():
        assert torch.equal(x, before[name]) != name.endswith(names), name


def test_nothing_is_left_to_learn_afterwards() -> None:
    model = converted().train()
    wanted = [x.requires_grad for x in model.parameters() if x.dim() == 2 and x.shape[0] == 48]
    distil(model, batches(), steps=3, progress=False)
    assert model.training
    assert [x.requires_grad for x in model.parameters() if x.dim() == 2 and x.shape[0] == 48] == wanted
    assert not any(x.requires_grad or x.grad is not None for n, x in model.named_parameters() if ".lln." in n)


def test_padding_has_no_influence_on_what_is_learned() -> None:
    first, second = batches()
    poisoned = {**second, "input_ids": second["input_ids"].clone()}
    poisoned["input_ids"][0, 11:] = 7
    models = [distil(converted(), [first, b], steps=6, stage="layers", progress=False) for b in (second, poisoned)]
    for x, y in zip(parameters(models[0]).values(), parameters(models[1]).values(), strict=True):
        torch.testing.assert_close(x, y)


def test_another_teacher_can_be_followed() -> None:
    teacher = softmax_model("bert")
    with torch.no_grad():
        for x in teacher.parameters():
            x.mul_(1.01)
    model = converted()
    with torch.no_grad():
        wanted = output(teacher, **inputs("bert"))
        before = float((output(model, **inputs("bert")) - wanted).square().sum())
        distil(model, [inputs("bert")], teacher=teacher, steps=STEPS, progress=False)
        assert float((output(model, **inputs("bert")) - wanted).square().sum()) < before


def test_lln_alone_can_be_distilled() -> None:
    errors: list[float] = []
    model = converted(attention="lln")
    distil(
        model,
        [inputs("bert")],
        steps=STEPS,
        stage="layers",
        progress=False,
        on_step=lambda *x: errors.append(sum(x[2])),
    )
    assert errors[-1] < 0.8 * errors[0]


def test_every_batch_is_seen_once_an_epoch_and_each_pass() -> None:
    plan = Plan(steps=100, batches=6, group=3, passes=2, seed=0)
    assert sorted(plan.members(0) + plan.members(1)) == list(range(6))
    assert [plan.group_of(s) for s in (0, 5, 6)] == [0, 0, 1]
    assert sorted(plan.member(s) for s in range(3)) == sorted(plan.member(s) for s in range(3, 6)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a whole number"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"stage": "all"}, "stage must be one of"),
        ({"maps": "tied"}, "maps must be 'auto', 'free', 'folded' or None"),
        ({"learn": ["gamma"]}, "or name some of alpha, beta"),
        ({"learn": []}, "or name some of alpha, beta"),
        ({"learn": [], "low_rank": 2}, "low_rank alone has nothing to learn layer by layer"),
        ({"steps": 1}, "of 1, 0 would be end to end"),
        ({"end_to_end_steps": 300}, "of 300, 300 would be end to end"),
    ],
)
def test_wrong_arguments_are_refused_in_words(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        distil(converted(), batches(), progress=False, **options)


def test_a_model_that_is_not_converted_is_refused() -> None:
    with pytest.raises(ValueError, match="convert the model first"):
        distil(softmax_model("bert"), batches(), progress=False)


@pytest.mark.parametrize("options", [{"maps": "folded"}, {"low_rank": 2}], ids=["folded", "low rank"])
def test_a_finished_run_is_not_folded_in_a_second_time(options: dict[str, Any], tmp_path: Path) -> None:
    if "low_rank" in options:
        pytest.importorskip("peft", reason="low-rank updates need peft")
    model = converted()
    given: dict[str, Any] = {"steps": 6, "progress": False, "checkpoint": tmp_path, **options}
    distil(model, batches(), **given)
    after = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(ValueError, match="weights_hash"):
        distil(model, batches(), **given)
    assert all(torch.equal(x, after[name]) for name, x in model.state_dict().items())


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    distil(converted(), batches(), steps=4, stage="layers", progress=False, checkpoint=tmp_path)
    other = [{**batch, "input_ids": batch["input_ids"].flip(1)} for batch in batches()]
    with pytest.raises(ValueError, match="data_hash"):
        distil(converted(), other, steps=4, stage="layers", progress=False, checkpoint=tmp_path)


@pytest.mark.parametrize("maps", ["free", "folded"])
def test_an_interrupted_run_leaves_the_model_as_it_was_and_goes_on_in_place(maps: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 8, "maps": maps, "progress": False, "checkpoint_every": 1}
    whole = distil(converted(), batches(), **options)
    model = converted()
    before, config = {name: x.clone() for name, x in model.state_dict().items()}, model.config.lln

    def interrupt(stage: str, step: int, _: Any) -> None:
        if (stage, step) == ("end_to_end", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil(model, batches(), checkpoint=tmp_path, on_step=interrupt, **options)
    assert model.config.lln == config and list(model.state_dict()) == list(before)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    distil(model, batches(), checkpoint=tmp_path, **options)
    assert all(torch.equal(x, model.state_dict()[name]) for name, x in whole.state_dict().items())


def test_a_teacher_of_its_own_keeps_its_mode_and_must_fit() -> None:
    teacher = softmax_model("bert").train()
    distil(converted(), batches(), teacher=teacher, steps=2, progress=False)
    assert teacher.training
    other = softmax_model("bert")
    other.config.num_attention_heads = 2
    narrow = AutoModel.from_config(other.config)
    model = converted().train()
    before = list(model.state_dict())
    with pytest.raises(ValueError, match="must have the model's heads and width"):
        distil(model, batches(), teacher=narrow, steps=2, progress=False)
    assert model.training and list(model.state_dict()) == before  # a refusal leaves it as it was


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"checkpoint_every": 0}, "checkpoint_every must be a whole number"),
        ({"end_to_end_lr": -1.0}, "end_to_end_lr must be positive"),
        ({"learn": ["maps"], "maps": None}, "nothing would learn"),
    ],
)
def test_arguments_that_train_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        distil(converted(), batches(), steps=2, progress=False, **options)


def test_a_converted_model_that_was_set_to_softmax_is_refused() -> None:
    model = converted()
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match=r"set_attn_implementation\('lln_diag'\) first"):
        distil(model, batches(), steps=2, progress=False)
