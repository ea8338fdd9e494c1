"""The standing of a task from its runs: differences seed by seed, equal time, ranks, and what is still missing."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from matplotlib.container import ErrorbarContainer
from typer.testing import CliRunner

from lln.results import write_result
from lln_cli.app import app
from lln_lab.cli.reproduce_training import app as reproduce
from lln_lab.evidence.ledger import entry, ledger
from lln_lab.evidence.plan import OPPONENT, TASKS, task
from lln_lab.evidence.plot import draw
from lln_lab.evidence.standing import AHEAD, ALIKE, BEHIND, OPEN, in_time_only, standing
from lln_lab.evidence.step_times import keep, ratios, seconds_of
from lln_lab.experiments.figure import save
from lln_lab.names import name_of
from lln_lab.pages.evidence import page

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "evidence"


def run(label: str, seed: int, accuracy: float, steps: int = 2000, name: str = "image") -> dict[str, Any]:
    return {
        "task": name, "label": label, "attention": label.split(" ")[0], "seed": seed, "steps": steps,
        "cpu_seconds_per_step": 0.3 if label.startswith("softmax") else 0.1,
        "evaluation": {"loss": 2.0, "accuracy": accuracy}, "data": {"guessing": 0.1},
    }  # fmt: skip


def runs(seeds: int = 3) -> list[dict[str, Any]]:
    """LLN+Diag three points ahead, LLN three behind, near-far on a par; softmax with a third of the steps much worse."""
    found = []
    for seed in range(seeds):
        common, noise = 0.30 + 0.04 * seed, 0.001 * (-1) ** seed
        found += [
            run("softmax", seed, common), run("lln_diag", seed, common + 0.03 + noise),
            run("lln", seed, common - 0.03 + noise), run("near_far", seed, common + 3 * noise),
            run("softmax (760 steps)", seed, common - 0.1 + noise, 760),
        ]  # fmt: skip
    return found


def test_attentions_are_compared_with_softmax_of_the_same_seed() -> None:
    found = standing(task("image"), {"runs": runs()})
    assert {one.attention: one.outcome for one in found.equal_steps} == {
        "lln_diag": AHEAD, "lln": BEHIND, "near_far": ALIKE
    }  # fmt: skip
    gained = {one.attention: one.gain.mean for one in found.equal_steps}
    assert gained["lln_diag"] == pytest.approx(3.03, abs=0.01) and gained["lln"] == pytest.approx(-2.97, abs=0.01)
    assert not found.lacks and found.softmax == pytest.approx(34.0)
    assert found.ranks() == {"lln_diag": 1, "near_far": 2, "softmax": 3, "lln": 4}


def test_at_equal_time_softmax_has_the_steps_that_fit() -> None:
    found = standing(task("image"), {"runs": runs()})
    assert found.softmax_in_time == (pytest.approx(24.03, abs=0.01), 760)
    assert all(one.outcome == AHEAD for one in found.equal_time)
    assert found.minutes["softmax (760 steps)"] == pytest.approx(3.8) and found.minutes["lln_diag"] < 3.8


def test_the_time_of_a_step_is_that_of_runs_that_took_turns_and_a_missing_comparison_is_told(tmp_path: Path) -> None:
    """Not that of the long runs, which come from several machines."""
    timed = [r for r in runs() if r["steps"] == 2000]
    timed = [{**r, "cpu_seconds_per_step": 0.24} if (r["label"], r["seed"]) == ("lln", 0) else r for r in timed]
    write_result(tmp_path / "image.json", {"runs": runs()})
    write_result(tmp_path / "text.json", {"runs": [{**r, "task": "text"} for r in timed]})
    assert "CPU time of a training step" not in page(tmp_path)
    for name in ("image", "text"):
        write_result(tmp_path / "of_a_task.json", {"runs": [{**r, "task": name} for r in timed]})
        keep(tmp_path, name, tmp_path / "of_a_task.json")
    (image, *_) = ledger(tmp_path)
    assert image.step_times == pytest.approx({"softmax": 1, "lln_diag": 1 / 3, "lln": 1 / 3, "near_far": 1 / 3})
    text = page(tmp_path)
    assert "| LRA Image | 1,024 | 0.33 | 0.33 | 0.33 | – |" in text and "at equal time: LRA Text." in text


def test_a_longer_budget_is_compared_at_equal_time_where_softmax_ran_in_that_time_alone(tmp_path: Path) -> None:
    given = [run("near_far", seed, 0.36 + 0.01 * seed, 5600) for seed in range(3)]
    given += [run("softmax (2,000 steps)", seed, 0.30 + 0.009 * seed) for seed in range(3)]
    found = in_time_only(task("image"), {"runs": given})
    (one,) = found.equal_time
    assert one.outcome == AHEAD and one.gain.mean == pytest.approx(6.1) and not found.lacks and not found.equal_steps
    assert "3 seeds" in in_time_only(task("image"), {"runs": given[:-1]}).lacks[0]
    write_result(tmp_path / "image.json", {"runs": runs()})
    write_result(tmp_path / "image_5600.json", {"runs": given})
    assert "- **LRA Image, 5,600 steps**, softmax 2,000 in the same time: near-far **ahead**." in page(tmp_path)
    at_time = page(tmp_path).partition("## At equal time")[2].partition("\n## ")[0]
    (row,) = (line for line in at_time.splitlines() if line.startswith("| LRA Image, 5,600 steps"))
    assert "| 1,024 | 2,000 | 30.9 |" in row and "**ahead**" in row


def test_tasks_without_a_verdict_are_listed_with_the_reason_and_what_is_known(tmp_path: Path) -> None:
    write_result(tmp_path / "image.json", {"runs": runs()})
    write_result(tmp_path / "text.json", {"runs": [{**r, "task": "text"} for r in runs(seeds=2)]})
    write_result(
        tmp_path / "pathfinder.json",
        {
            "runs": [
                run("lln_diag", 0, 0.502, 6000, "pathfinder"),
                run("softmax (2,100 steps)", 0, 0.49, 2100, "pathfinder"),
            ]
        },
    )
    write_result(tmp_path / "mlm.json", {"runs": [run("lln", seed, 0.1, 3000, "mlm") for seed in (0, 1)]})
    parts = [run("lln_diag", 0, accuracy, 400, name) for name, accuracy in (("sst2", 0.8), ("qnli", 0.6))]
    write_result(tmp_path / "glue.json", {"runs": parts})
    told = page(tmp_path).partition("## Without a verdict")[2].partition("\n## ")[0]
    assert "LRA Image" not in told and "- **LRA Text**: a spread needs 3 seeds" in told
    assert "as long as the others; LLN+Diag 50.2 % after 6,000 steps (one seed), softmax 49.0 % after 2,100" in told
    assert "- **Masked language model**: softmax has not run; LLN 2.000 nats after 3,000 steps (2 seeds)." in told
    assert "softmax has not run; LLN+Diag 70.0 % after 400 steps (one seed)." in told
    assert "- **Dogs vs cats**: nothing has run yet." in told


def test_less_loss_is_better() -> None:
    given = [{**r, "task": "mlm", "evaluation": {"loss": r["evaluation"]["accuracy"]}} for r in runs()]
    given = [{**r, "data": {"guessing": 2.0}} for r in given if r["label"] in ("softmax", "lln", "lln_diag")]
    found = standing(task("mlm"), {"runs": given})
    assert {one.attention: one.outcome for one in found.equal_steps} == {"lln_diag": BEHIND, "lln": AHEAD}
    assert found.ranks() == {"lln": 1, "softmax": 2, "lln_diag": 3}


def test_nothing_is_decided_by_two_seeds_or_before_softmax_has_learned() -> None:
    few = standing(task("image"), {"runs": runs(seeds=2)})
    assert {one.outcome for one in few.equal_steps} == {OPEN} and "3 seeds" in few.lacks[0]
    early = [{**r, "evaluation": {"accuracy": r["evaluation"]["accuracy"] - 0.2}} for r in runs()]
    assert "softmax has not learned" in standing(task("image"), {"runs": early}).lacks[0]


def test_several_tasks_count_by_their_mean() -> None:
    slow, fast = (
        run("softmax", 0, 0.8, name="sst2"),
        run("softmax", 0, 0.6, name="qnli") | {"cpu_seconds_per_step": 0.2},
    )
    given = [slow, fast, run("lln", 0, 0.7, name="sst2")]
    found = standing(task("glue"), {"runs": [*given, run("lln", 0, 0.6, name="qnli")]})
    assert found.softmax == pytest.approx(70.0) and found.equal_steps[0].gain.mean == pytest.approx(-5.0)
    times = ratios(seconds_of([*given, run("lln", 0, 0.6, name="qnli")]))
    assert times == {"softmax": 1.0, "lln": pytest.approx(0.1 / 0.25)}  # softmax's steps took 0.3 and 0.2 seconds
    assert found.lacks == ("a spread needs 3 seeds (there is 1)",)  # 70 % is more than halfway from 10 to 88.9
    given = [{**r, "data": {"guessing": 0.6}} for r in given]
    assert "needed: 74.4 %" in standing(task("glue"), {"runs": given}).lacks[1]


def test_the_ledger_counts_what_is_left_and_the_page_says_it(tmp_path: Path) -> None:
    write_result(tmp_path / "image.json", {"runs": runs()})
    found = {each.task.name: each for each in ledger(tmp_path)}
    assert (found["image"].done, found["image"].left) == (15, 3) and found["text"].left == 18  # the opponent is left
    assert entry(task("glue"), None).planned == 48
    text = page(tmp_path)
    assert "1 of 11 tasks have three seeds" in text and "15 of 18" in text and "0 of 18" in text
    assert "**LLN+Diag**: at equal steps 1 ahead; at equal time 1 ahead." in text
    assert "| LRA Image | 2,000 | 10.0 | 37.2 | 34.0 | 88 % |" in text  # (34 - 10) / (37.2 - 10)
    assert "**LLN**: at equal steps 1 behind; at equal time 1 ahead." in text


def test_runs_of_another_budget_are_not_what_was_planned() -> None:
    shorter = [run("softmax", seed, 0.6, steps=1500, name="dogs_vs_cats") for seed in range(2)]
    found = entry(task("dogs_vs_cats"), {"runs": [*shorter, run("lln", 0, 0.6, steps=3000, name="dogs_vs_cats")]})
    assert (found.done, found.left) == (1, 14) and found.minutes > 15  # what they cost counts


def test_one_of_ours_without_its_seeds_is_open_and_holds_nobody_up(tmp_path: Path) -> None:
    given = [r for r in runs() if r["label"] != "lln" or r["seed"] == 0]
    found = standing(task("image"), {"runs": given})
    assert not found.lacks and not found.complete and standing(task("image"), {"runs": runs()}).complete
    outcomes = {one.attention: one.outcome for one in found.equal_steps}
    assert outcomes == {"lln": OPEN, "lln_diag": AHEAD, "near_far": ALIKE}
    for name in ("image", "text"):
        write_result(tmp_path / f"{name}.json", {"runs": [{**r, "task": name} for r in _text_scores(given)]})
    assert "Mean rank" not in page(tmp_path)


def test_a_run_resumed_after_its_last_step_counts_as_long_as_its_other_seeds() -> None:
    timed = entry(task("image"), {"runs": runs()})
    untimed = [{**r, "cpu_seconds_per_step": r["cpu_seconds_per_step"] if r["seed"] else None} for r in runs()]
    found = entry(task("image"), {"runs": untimed})
    assert found.minutes == pytest.approx(timed.minutes) and found.standing is not None and timed.standing is not None
    assert found.standing.minutes == pytest.approx(timed.standing.minutes)


def test_an_opponent_is_ranked_where_it_ran_and_its_seeds_hold_nobody_up(tmp_path: Path) -> None:
    one_seed = [*runs(), run(OPPONENT, 0, 0.9)]
    found = standing(task("image"), {"runs": one_seed})
    assert not found.lacks and {one.attention: one.outcome for one in found.equal_steps}[OPPONENT] == OPEN
    assert found.ranks()[OPPONENT] == 1 and found.ranks(["softmax", "lln"]) == {"softmax": 1, "lln": 2}
    write_result(tmp_path / "image.json", {"runs": one_seed})
    write_result(tmp_path / "text.json", {"runs": [{**r, "task": "text"} for r in _text_scores(runs())]})
    text = " ".join(page(tmp_path).split())
    assert (
        "Over the 2 tasks with a verdict on each of ours, at equal steps, by mean score (1 is best): LLN+Diag 1.0"
        in text
    )
    assert f"With {name_of(OPPONENT)}, where it ran (LRA Image): {name_of(OPPONENT)} 1.0, LLN+Diag 2.0" in text


def _text_scores(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**r, "evaluation": {"accuracy": r["evaluation"]["accuracy"] + 0.3}} for r in given]


def test_every_gain_is_drawn_with_its_interval(tmp_path: Path) -> None:
    found = standing(task("image"), {"runs": runs()})
    figure = draw({"judged": [found]})
    bars = [bar for bar in figure.axes[0].containers if isinstance(bar, ErrorbarContainer)]
    drawn = sorted((float(x), float(low), float(high)) for bar in bars for x, low, high in [_ends(bar)])
    told = sorted((g.mean, g.low, g.high) for g in (one.gain for one in (*found.equal_steps, *found.equal_time)))
    assert drawn == [pytest.approx(each) for each in told] and len(drawn) == 6
    assert save(draw, {"judged": [found]}, tmp_path / "gains.png").stat().st_size > 1000


def test_a_longer_budget_is_drawn_at_equal_time_alone() -> None:
    given = [run("near_far", seed, 0.36 + 0.01 * seed, 5600) for seed in range(3)]
    given += [run("softmax (2,000 steps)", seed, 0.30 + 0.009 * seed) for seed in range(3)]
    figure = draw({"judged": [standing(task("image"), {"runs": runs()}), in_time_only(task("image"), {"runs": given})]})
    named = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert named == ["LRA Image", "at equal time", "LRA Image, 5,600 steps,\nat equal time"]


def _ends(bar: ErrorbarContainer) -> tuple[float, float, float]:
    point, _, (span,) = bar.lines
    (low, _), (high, _) = span.get_segments()[0]
    return point.get_xdata()[0], low, high


@pytest.mark.parametrize("planned", TASKS, ids=lambda each: each.name)
def test_a_planned_command_is_one_that_exists(planned: Any) -> None:
    group: Any = typer.main.get_command(reproduce)
    _, name, *arguments = planned.command()
    more = ["--model", "."] if planned.converts else []
    context = group.commands[name].make_context(name, [*arguments, *more])
    assert context.params["seeds"] == 3
    _, name, *arguments = planned.timing_command()
    timed = group.commands[name].make_context(name, [*arguments, *more]).params
    changed = {option for option, value in context.params.items() if timed[option] != value}
    assert timed["steps"] == 12 and changed <= {"steps", "validation_rows", "attention"}
    assert not any("#" in attention for attention in timed["attention"])


@pytest.mark.parametrize("planned", TASKS, ids=lambda each: each.name)
def test_a_planned_length_is_that_of_the_models_that_ran(planned: Any) -> None:
    path = RESULTS / f"{planned.name}.json"
    if not path.exists():
        pytest.skip(f"{planned.name} has not run yet")
    for model in (each["model"] for each in json.loads(path.read_text())["runs"]):
        patches = (model["picture"] // model["patch"]) ** 2 + 1 if "picture" in model else None
        assert planned.length == (patches or model["length"])


def test_unknown_tasks_and_a_missing_model_are_refused_in_words() -> None:
    for arguments, told in (
        (["--task", "imge"], "choose from: image, mlm"),
        (["--task", "glue"], "give its folder"),
        (["--time", "--seeds", "1"], "--time trains nothing to its end"),
    ):
        result = CliRunner().invoke(app, ["evidence", *arguments], env={"COLUMNS": "200"})
        assert result.exit_code == 2 and told in " ".join(result.output.split())
