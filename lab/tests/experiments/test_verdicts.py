"""Verdicts and tables when runs diverge, repeat themselves, or are not what is compared."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lln_lab.experiments import evidence, fig8, length, lra, scores, sensitivity, table1, table3
from lln_lab.experiments.contestants import parse
from lln_lab.experiments.grid import mean_and_spread
from lln_lab.experiments.verdict import FAILS, HOLDS, OPEN, no_worse


def test_a_diverged_run_leaves_no_mean_and_is_worse() -> None:
    assert all(map(math.isnan, mean_and_spread([6.3, math.nan])))
    assert mean_and_spread([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    assert no_worse(math.nan, 1.0) == no_worse(1.1, 1.0) == FAILS and no_worse(0.9, 1.0) == no_worse(-1.0, 0.0) == HOLDS


def mlm(label: str, seed: int, norms: list[float], loss: float = 6.0) -> dict[str, Any]:
    history = [{"step": 10 * (i + 1), "loss": 6.0, "grad_norm": x} for i, x in enumerate(norms)]
    return {
        "task": "mlm", "attention": label, "label": label, "options": {}, "seed": seed, "evaluation": {"loss": loss},
        "data": {"guessing": 7.0}, "steps": 30, "budget": {"log_every": 10, "warmup": 10}, "parameters": 1,
        "seconds_per_step": 0.1, "history": history,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("norms", "outcome"),
    [
        ([[9.0, 1.0, 1.0], [9.0, 1.05, 1.0], [9.0, 1.0, 1.05]], HOLDS),  # the warm-up does not count
        ([[2.0, 1.0, 1.9], [2.0, 1.8, 1.0], [2.0, 1.9, 1.0]], FAILS),
        ([[1.0, 0.9, math.nan], [1.0, 0.9, 0.9], [1.0, 0.9, 0.9]], FAILS),  # max would pass over it
    ],
)
def test_gradients_are_judged_after_the_warmup(norms: list[list[float]], outcome: str) -> None:
    runs = [mlm("softmax", seed, [2.0, 1.1, 1.0]) for seed in range(3)]
    runs += [mlm("lln_diag", seed, own) for seed, own in enumerate(norms)]
    (verdict,) = fig8.gradient_verdicts(runs, "lln_diag")
    assert verdict.outcome == outcome


def test_nothing_is_judged_with_too_few_seeds_or_before_softmax_has_learned() -> None:
    runs = [mlm(label, seed, [1.0, 1.0]) for label in ("softmax", "lln") for seed in range(3)]
    assert {verdict.outcome for verdict in fig8.verdicts(runs)} == {HOLDS}
    for few in (runs[:1] + runs[3:4], runs[:2] + runs[3:]):
        for verdict in fig8.verdicts(few):
            assert verdict.outcome == OPEN and "a spread needs 3 seeds" in verdict.numbers
    assert "spread over seeds" not in fig8.verdicts(runs[:1] + runs[3:4])[0].numbers, "one seed has no spread"
    early = [{**r, "evaluation": {"loss": 6.6}} for r in runs]
    (verdict, *_) = fig8.verdicts(early)
    assert (
        verdict.outcome == OPEN and "softmax has not learned in 30 steps (loss 6.600; needed: 6.500" in verdict.numbers
    )
    (verdict, *_) = fig8.verdicts([{**r, "data": {}} for r in runs])
    assert verdict.outcome == OPEN and "accuracy of guessing was not recorded" in verdict.numbers


def test_softmax_has_learned_a_task_half_way_from_guessing_to_the_papers_score() -> None:
    def runs(softmax: float) -> list[dict[str, Any]]:
        return [
            {**scored(name, score, seed), "label": name, "task": "image", "data": {"guessing": 0.1}}
            for name, score in (("softmax", softmax), ("lln_diag", 0.3))
            for seed in range(3)
        ]

    (verdict,) = scores.against(runs(0.23), "image", "on a par")
    assert verdict.outcome == OPEN and "23.0 %; needed: 23.6 %" in verdict.numbers
    assert scores.against(runs(0.24), "image", "on a par")[0].outcome == HOLDS
    assert scores.against(runs(0.31), "image", "on a par")[0].outcome == FAILS


def test_a_vision_transformer_on_cifar_is_judged_by_a_score_of_ours() -> None:
    def runs(softmax: float) -> list[dict[str, Any]]:
        return [
            {**scored(name, score, seed), "label": name, "task": "cifar10", "data": {"guessing": 0.1}}
            for name, score in (("softmax", softmax), ("lln_diag", 0.60), ("near_far", 0.40))
            for seed in range(3)
        ]

    assert [verdict.outcome for verdict in table3.verdicts(runs(0.51))] == [HOLDS, FAILS]
    for verdict in table3.verdicts(runs(0.49)):
        assert (
            verdict.outcome == OPEN and "needed: 50.0 %, chosen for a task that the paper does not" in verdict.numbers
        )
        assert "A.8.2" not in verdict.claim, "nobody but us claims it"


def test_who_does_not_look_scores_what_is_most_frequent() -> None:
    assert evidence.most_frequent([{"label": x} for x in (0, 1, 1, 2)]) == 0.5  # type: ignore[arg-type]
    text = torch.tensor([0, 0, 0, 1])
    even = evidence.by_frequency(text, torch.tensor([0, 1]), 2)
    assert even == pytest.approx(-(math.log(4 / 6) + math.log(2 / 6)) / 2)


def test_a_table_with_a_diverged_run_can_be_made() -> None:
    runs = [mlm("softmax", 0, [1.0]), mlm("lln", 0, [math.nan]), mlm("lln", 1, [1.0], loss=math.nan)]
    rows = {row[0]: row for row in fig8.table(runs)["rows"]}
    assert math.isnan(rows["lln"][1]) and math.isnan(rows["lln"][6]) and rows["softmax"][1] == 6.0


def scored(attention: str, score: float, seed: int = 0, **options: float) -> dict[str, Any]:
    return {
        "task": "text", "attention": attention, "label": f"{attention}{options}", "options": options, "seed": seed,
        "evaluation": {"accuracy": score}, "steps": 2, "data": {"guessing": 0.0}, "history": [{"step": 2, "grad_norm": 1.0}],
    }  # fmt: skip


def test_only_the_same_attention_counts_as_matched() -> None:
    fixed = [scored("lln", 0.5, seed, alpha=1.0, beta=1.0) for seed in range(3)]
    matched = [scored("lln", 0.35, seed) for seed in range(3)]
    others = [scored("softmax", 0.9, seed) for seed in range(3)]
    (verdict,) = sensitivity.verdicts([*fixed, *matched, *others], "text")
    assert verdict.outcome == FAILS and "matched 35.0 %" in verdict.numbers and "1 of 1 are better" in verdict.numbers
    assert sensitivity.verdicts([fixed[0], matched[0]], "text")[0].outcome == OPEN
    assert "matched: 35.0" in table3.ablation_verdicts([*fixed, *matched, *others])[0].numbers
    assert table3.ablation_verdicts([*fixed, *others]) == []


def test_a_map_with_holes_can_be_drawn() -> None:
    runs = [scored("lln", 0.5, alpha=1.0, beta=1.0), scored("lln", 0.4, alpha=2.0, beta=2.0), scored("lln", 0.3)]
    assert len(sensitivity.draw({"runs": runs}).axes) == 2


@pytest.mark.parametrize("experiment", [lra, length])
def test_a_task_that_is_named_twice_or_unknown_is_refused(experiment: Any, tmp_path: Any) -> None:
    settings = experiment.PRESETS["cpu"]
    with pytest.raises(ValueError, match="each task may be given once"):
        experiment.run(replace(settings, tasks=(settings.tasks[0],) * 2), tmp_path)
    with pytest.raises(ValueError, match="(no|unknown) task foo"):
        experiment.run(replace(settings, tasks=("foo",)), tmp_path)


def test_an_option_of_the_wrong_kind_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="invalid values 'block_size=abc' for the options of lln_diag"):
        parse("lln_diag:block_size=abc")


@pytest.mark.parametrize("experiment", [fig8, table1, table3], ids=lambda module: module.__name__.rpartition(".")[2])
def test_an_unknown_attention_is_refused_before_data_is_looked_for(experiment: Any, tmp_path: Path) -> None:
    settings = replace(experiment.PRESETS["cpu"], contestants=("softmx",))
    with pytest.raises(ValueError, match="no member 'softmx'"):
        experiment.run(settings, tmp_path / "runs", source=str(tmp_path / "nothing"))
