"""The first round: places by accuracy over the tasks, and who is the best of the others."""

from pathlib import Path
from typing import Any

import pytest

from lln.results import write_result
from lln_lab.evidence.first_round import best_of_the_others, first_round
from lln_lab.evidence.plan import OPPONENT
from lln_lab.pages.evidence import short_runs

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"


def run(attention: str, task: str, accuracy: float, seed: int = 0, steps: int = 300) -> dict[str, Any]:
    return {
        "task": task, "label": attention, "attention": attention, "seed": seed, "steps": steps,
        "model": {"length": 1024}, "data": {"rows": {"train": 9, "validation": 9}}, "evaluation": {"accuracy": accuracy},
    }  # fmt: skip


def write(folder: Path, name: str, *runs: dict[str, Any]) -> None:
    write_result(folder / name, {"runs": list(runs)})


def test_places_are_means_over_tasks_and_the_best_other_is_linear_and_not_ours(tmp_path: Path) -> None:
    assert first_round(tmp_path) == [] and short_runs(tmp_path) == []
    write(
        tmp_path, "lra.json",
        run("softmax", "text", 0.9), run("softmax", "image", 0.9), run("lln", "text", 0.8), run("lln", "image", 0.8),
        run("elu", "text", 0.99, seed=1),
    )  # fmt: skip
    write(
        tmp_path, "lra_others.json",
        run("elu", "text", 0.7), run("elu", "image", 0.7), run("relu", "text", 0.8), run("relu", "image", 0.6),
        run("rfa", "text", 1.0),
    )  # fmt: skip
    places = first_round(tmp_path)
    assert [(place.member, place.rank) for place in places] == [
        ("softmax", 1), ("lln", 2.25), ("relu", 3.25), ("elu", 3.5)
    ], "equal scores share a place; other seeds do not count; who lacks a task is left out"  # fmt: skip
    assert best_of_the_others(places) == "relu"
    told = "\n".join(short_runs(tmp_path))
    assert "besides ours is ReLU" in told and "| LLN | 80.0 | 80.0 | 2.2 |" in told and "lra_rivals" not in told


def test_runs_of_different_length_are_not_compared(tmp_path: Path) -> None:
    write(tmp_path, "lra.json", run("softmax", "text", 0.9))
    write(tmp_path, "lra_rivals.json", run("mala", "text", 0.9, steps=600))
    with pytest.raises(ValueError, match="lra_rivals.json: text ran with .600"):
        first_round(tmp_path)


def test_the_opponent_of_the_long_runs_is_the_one_that_the_committed_round_chose() -> None:
    assert best_of_the_others(first_round(RESULTS)) == OPPONENT
