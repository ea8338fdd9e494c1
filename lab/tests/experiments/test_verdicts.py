"""Verdicts and tables when runs diverge, repeat themselves, or are not what is compared."""

import math
from dataclasses import replace
from typing import Any

import pytest

from lln_lab.experiments import fig8, length, lra, sensitivity, table3
from lln_lab.experiments.contestants import parse
from lln_lab.experiments.grid import mean_and_spread
from lln_lab.experiments.verdict import FAILS, HOLDS, OPEN, no_worse


def test_a_diverged_run_leaves_no_mean_and_is_worse() -> None:
    assert all(map(math.isnan, mean_and_spread([6.3, math.nan])))
    assert mean_and_spread([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    assert no_worse(math.nan, 1.0, seeds=3) == no_worse(math.nan, 1.0, seeds=1) == FAILS


def mlm(label: str, seed: int, norms: list[float], loss: float = 6.0) -> dict[str, Any]:
    history = [{"step": 10 * (i + 1), "loss": 6.0, "grad_norm": x} for i, x in enumerate(norms)]
    return {
        "task": "mlm", "attention": label, "label": label, "options": {}, "seed": seed, "evaluation": {"loss": loss},
        "budget": {"log_every": 10, "warmup": 10}, "parameters": 1, "seconds_per_step": 0.1, "history": history,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("norms", "outcome"),
    [
        ([[9.0, 1.0, 1.0], [9.0, 1.1, 1.0]], HOLDS),  # the warm-up does not count
        ([[2.0, 1.0, 1.9], [2.0, 1.8, 1.0]], FAILS),
        ([[1.0, 0.9, math.nan], [1.0, 0.9, 0.9]], FAILS),  # max would pass over it
    ],
)
def test_gradients_are_judged_after_the_warmup(norms: list[list[float]], outcome: str) -> None:
    runs = [mlm("softmax", seed, [2.0, 1.1, 1.0]) for seed in (0, 1)]
    runs += [mlm("lln_diag", seed, own) for seed, own in enumerate(norms)]
    (verdict,) = fig8.gradient_verdicts(runs, "lln_diag")
    assert verdict.outcome == outcome
    assert fig8.gradient_verdicts(runs[:1] + runs[2:3], "lln_diag")[0].outcome in (OPEN, FAILS)


def test_a_table_with_a_diverged_run_can_be_made() -> None:
    runs = [mlm("softmax", 0, [1.0]), mlm("lln", 0, [math.nan]), mlm("lln", 1, [1.0], loss=math.nan)]
    rows = {row[0]: row for row in fig8.table(runs)["rows"]}
    assert math.isnan(rows["lln"][1]) and math.isnan(rows["lln"][6]) and rows["softmax"][1] == 6.0


def scored(attention: str, score: float, seed: int = 0, **options: float) -> dict[str, Any]:
    return {
        "task": "text", "attention": attention, "label": f"{attention}{options}", "options": options, "seed": seed,
        "evaluation": {"accuracy": score}, "steps": 2, "history": [{"step": 2, "grad_norm": 1.0}],
    }  # fmt: skip


def test_only_the_same_attention_counts_as_matched() -> None:
    fixed = [scored("lln", 0.5, seed, alpha=1.0, beta=1.0) for seed in (0, 1)]
    matched = [scored("lln", 0.3, seed) for seed in (0, 1)]
    others = [scored("softmax", 0.9, seed) for seed in (0, 1)]
    (verdict,) = sensitivity.verdicts([*fixed, *matched, *others], "text")
    assert verdict.outcome == FAILS and "matched 30.0 %" in verdict.numbers and "1 of 1 are better" in verdict.numbers
    assert sensitivity.verdicts([fixed[0], matched[0]], "text")[0].outcome == OPEN
    assert "matched: 30.0" in table3.ablation_verdicts([*fixed, *matched, *others])[0].numbers
    assert table3.ablation_verdicts([*fixed, *others]) == []


def test_a_map_with_holes_can_be_drawn() -> None:
    runs = [scored("lln", 0.5, alpha=1.0, beta=1.0), scored("lln", 0.4, alpha=2.0, beta=2.0), scored("lln", 0.3)]
    assert len(sensitivity.draw({"runs": runs}).axes) == 2


@pytest.mark.parametrize("experiment", [lra, length])
def test_a_task_that_is_named_twice_or_unknown_is_refused(experiment: Any, tmp_path: Any) -> None:
    settings = experiment.PRESETS["cpu"]
    with pytest.raises(ValueError, match="every task can be named once"):
        experiment.run(replace(settings, tasks=(settings.tasks[0],) * 2), tmp_path)
    with pytest.raises(ValueError, match="no task foo"):
        experiment.run(replace(settings, tasks=("foo",)), tmp_path)


def test_an_option_of_the_wrong_kind_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="no values for the options of lln_diag"):
        parse("lln_diag:block_size=abc")
