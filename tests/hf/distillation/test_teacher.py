"""The teacher's logits come from hidden states that were kept, to the bit, where its head allows it."""

from typing import Any

import pytest
import torch

from lln.hf.distillation.distil import distil
from lln.hf.distillation.low_rank import LowRank
from lln.hf.distillation.teacher import Teacher
from tests.hf.distillation.test_distil import batches, converted, softmax_model
from tests.hf.models import output


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_logits_are_those_of_the_model_and_its_body_runs_once_for_all_passes(family: str) -> None:
    model, original = converted(family), softmax_model(family)
    passes: list[int] = []
    model.base_model.register_forward_hook(lambda *_: passes.append(1))
    teacher = Teacher(model)
    given = batches(family)
    shown = teacher.outputs(given)
    before = len(passes)
    for _ in range(2):
        for one, batch in zip(shown, given, strict=True):
            assert one.hidden is not None
            torch.testing.assert_close(teacher.wanted(one).logits, output(original, **batch))
            assert torch.equal(teacher.wanted(one).logits, teacher.output(batch).logits)
    assert len(passes) == before + 4, "only `output`, called here four times, runs the body"


def test_a_head_that_does_more_than_a_product_is_asked_each_time() -> None:
    model = converted("llama")
    scaled, forward = 2.0, model.forward

    def scaling(*args: Any, **options: Any) -> Any:
        found = forward(*args, **options)
        found.logits = found.logits * scaled
        return found

    model.forward = scaling
    teacher = Teacher(model)
    (shown, *_) = teacher.outputs(batches("llama"))
    assert shown.hidden is None and teacher.keeps_hidden is False
    assert torch.equal(teacher.wanted(shown).logits, teacher.output(shown.batch).logits)


def test_low_rank_updates_of_the_model_do_not_reach_what_is_kept() -> None:
    model = converted("llama")
    (before, *_) = Teacher(model).outputs(batches("llama"))
    updates = LowRank(model, 2, 0)
    with torch.no_grad():
        for x in updates.parameters.values():
            x.add_(0.1)
    (after, *_) = Teacher(model, updates).outputs(batches("llama"))
    assert before.hidden is not None and after.hidden is not None
    assert torch.equal(before.hidden, after.hidden)


def test_what_is_learned_is_the_same_with_and_without_keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"steps": 6, "stage": "end_to_end", "progress": False, "low_rank": 2}
    kept = distil(converted("llama"), batches("llama"), **options)
    monkeypatch.setattr(Teacher, "_head_takes_hidden_states", lambda *_: False)
    anew = distil(converted("llama"), batches("llama"), **options)
    for (name, x), y in zip(kept.state_dict().items(), anew.state_dict().values(), strict=True):
        assert torch.equal(x, y), name
