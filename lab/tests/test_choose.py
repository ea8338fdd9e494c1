"""`lln choose`: who qualifies, what is known of quality, and in which order they come."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("typer")

from lln_lab.choose.measure import Asked, Timing, disqualified, measure
from lln_lab.choose.quality import Row, gather, known, nearest
from lln_lab.choose.ranking import caveat, rank
from lln_lab.cli.choose import choose
from lln_lab.cli.report import report

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ROW = Row("elu", "text", 1024, False, 300, 3, -1.0, [-3.0, 1.0], "points", "lra.json")


def test_the_rows_that_ship_are_those_of_the_repositorys_results() -> None:
    assert known() == gather(RESULTS), "python -m lln_lab.choose.quality docs/results writes them anew"


def test_a_gain_is_the_mean_difference_to_softmax_of_the_same_seed(tmp_path: Path) -> None:
    def run(attention: str, seed: int, loss: float, label: str = "") -> dict[str, Any]:
        return {
            "task": "mlm", "attention": attention, "label": label or attention, "seed": seed, "steps": 10,
            "model": {"length": 64}, "evaluation": {"loss": loss},
        }  # fmt: skip

    runs = [run("softmax", 0, 2.0), run("softmax", 1, 4.0), run("lln", 0, 1.5), run("lln", 1, 3.9), run("lln", 2, 0.0)]
    runs += [
        run("softmax", 0, 9.0, "softmax (5 steps)"),
        run("lln", 1, 9.0, "lln (alpha=2.0)"),
    ]  # others than the defaults
    (tmp_path / "a.json").write_text(json.dumps({"experiment": "fig8", "runs": runs}))
    (tmp_path / "b.json").write_text(json.dumps({"rows": []}))
    (row,) = gather(tmp_path)
    assert (row.member, row.seeds, row.length, row.unit) == ("lln", 2, 64, "nats")
    assert row.gain == pytest.approx(0.3) and row.interval is None, "two seeds decide nothing"
    (tmp_path / "a.json").write_text(json.dumps({"experiment": "fig8", "runs": [*runs, run("softmax", 2, 0.3)]}))
    (row,) = gather(tmp_path)
    half = 4.3027 * 0.2 / 3**0.5  # Student's quantile, the standard deviation of 0.5, 0.1 and 0.3
    assert row.interval == pytest.approx([0.3 - half, 0.3 + half], abs=1e-4) and not row.behind
    assert str(row) == "mlm +0.3 [-0.2, +0.8] nats (64 tokens, 3 seeds)"


def test_runs_without_softmax_are_compared_with_the_softmax_of_another_result_that_trained_alike(
    tmp_path: Path,
) -> None:
    def run(attention: str, accuracy: float, steps: int = 300, rows: int = 1000) -> dict[str, Any]:
        return {
            "task": "text", "attention": attention, "label": attention, "seed": 0, "steps": steps,
            "budget": {"batch": 8, "learning_rate": 1e-3}, "model": {"length": 1024}, "data": {"rows": {"validation": rows}},
            "evaluation": {"accuracy": accuracy},
        }  # fmt: skip

    results = {
        "a": [run("softmax", 0.60)],
        "b": [run("relu", 0.59)],
        "c": [run("mhla", 0.59, steps=200), run("sla", 0.59, rows=5000)],  # softmax has no such run
        "d": [run("softmax", 0.50, rows=500), run("elu", 0.55, rows=500)],  # has its own
    }
    for name, runs in results.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"experiment": "lra", "runs": runs}))
    found = {(row.member, row.source): row.gain for row in gather(tmp_path)}
    assert found == {("relu", "b.json"): pytest.approx(-1.0), ("elu", "d.json"): pytest.approx(5.0)}


def test_the_nearest_length_counts_and_of_each_task_the_longest_training() -> None:
    rows = [
        ROW,
        replace(ROW, steps=1000),
        replace(ROW, length=128),
        replace(ROW, task="image"),
        replace(ROW, member="lln"),
    ]
    found = nearest(rows, "elu", 2000, False)
    assert {(row.task, row.steps) for row in found} == {("text", 1000), ("image", 300)}
    assert nearest(rows, "elu", 100, False) == [rows[2]]
    assert nearest([ROW, replace(ROW, causal=True, length=64)], "elu", 1024, True)[0].length == 64
    assert nearest(rows, "performer", 100, False) == []


def test_the_order_puts_quality_before_speed_and_says_why() -> None:
    timings = [
        Timing("softmax", "ok", 4.0, 1.0, 1.0), Timing("elu", "ok", 1.0, 1.0, 0.25), Timing("lln", "ok", 2.0, 1.0, 0.5),
        Timing("relu", "ok", 0.5, 1.0, 0.1), Timing("tnn", "timeout"), Timing("performer", "ok", 3.0, 1.0, 0.7),
    ]  # fmt: skip
    rows = [replace(ROW, interval=[-3.0, -0.1]), replace(ROW, member="lln")]
    rows += [replace(ROW, member="performer", seeds=1, interval=None)]
    asked = Asked(1024, 64, 2)
    places = rank(asked, timings, rows)
    assert [place.timing.member for place in places] == ["lln", "softmax", "relu", "performer", "elu", "tnn"]
    assert [place.group for place in places] == [1, 1, 2, 2, 3, 4]
    assert "never trained here" in places[2].reason and "longer than the limit" in places[-1].reason
    assert caveat(asked, places).startswith("lln comes first")


def test_members_are_timed_in_turns_beside_softmax() -> None:
    asked = Asked(64, 32, 2, causal=True, serving=True, rounds=1, clock="cpu")
    timings = measure(asked, ["elu"])
    assert [timing.member for timing in timings] == ["softmax", "elu"]
    assert all(timing.status == "ok" and timing.seconds > 0 for timing in timings)
    assert timings[0].ratio == 1.0 and timings[1].ratio == pytest.approx(timings[1].seconds / timings[0].seconds)


def test_who_has_no_causal_form_is_not_asked() -> None:
    assert disqualified("nystromformer", causal=True) == "it has no causal form"
    assert disqualified("gated_delta", causal=False) == "it has only a causal form"
    assert disqualified("lln", causal=True) is None


def invoke(*arguments: str) -> Any:
    import typer

    app = typer.Typer()
    app.command()(choose)
    app.command()(report)
    return CliRunner().invoke(app, ["choose", *arguments])


def test_the_command_prints_a_ranking_and_writes_it(tmp_path: Path) -> None:
    out = tmp_path / "chosen.json"
    given = [
        "--length",
        "64",
        "--width",
        "32",
        "--heads",
        "2",
        "--rounds",
        "1",
        "--member",
        "elu",
        "--member",
        "gated_delta",
    ]
    result = invoke(*given, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "elu" in result.output and "not asked: gated_delta" in result.output
    written = json.loads(out.read_text())
    assert {place["timing"]["member"] for place in written["places"]} == {"softmax", "elu"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--length", "64", "--width", "30", "--heads", "4"], "multiple of the number of heads"),
        (["--length", "64", "--member", "nobody"], "unknown attention 'nobody'"),
        (["--length", "64", "--clock", "sun"], "clock must be one of"),
    ],
)
def test_what_cannot_be_is_refused_in_words(given: list[str], words: str) -> None:
    result = invoke(*given)
    assert result.exit_code == 2 and words in " ".join(result.output.replace("│", " ").split())
