"""What has run of the plan and what is left, from a folder with a result for each task: image.json, mlm.json, …"""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lln_lab.evidence.plan import SEEDS, TASKS, Task
from lln_lab.evidence.standing import Standing, minutes, one_task, score_of, standing
from lln_lab.evidence.step_times import ratios, read
from lln_lab.experiments.training.run import LANGUAGE


@dataclass(frozen=True)
class Reached:
    """The mean score of one attention on a task that softmax has not run with all its steps."""

    label: str
    steps: int
    seeds: int
    score: float
    unit: str  # "%" or "nats"


@dataclass(frozen=True)
class Entry:
    """A task of the plan: how many of its runs have finished, what they cost, and what they say.

    Runs of another budget than the planned one do not count as done.
    """

    task: Task
    done: int
    planned: int
    minutes: float  # CPU minutes spent
    standing: Standing | None  # None: softmax has not run yet
    step_times: dict[str, float]  # CPU time of a step by attention, softmax = 1; {} where it was not measured
    reached: tuple[Reached, ...] = ()  # where softmax has not run

    @property
    def left(self) -> int:
        return max(0, self.planned - self.done)


def ledger(folder: Path) -> list[Entry]:
    timed = read(folder)
    return [entry(task, _read(folder / f"{task.name}.json"), timed.get(task.name)) for task in TASKS]


def entry(task: Task, found: dict[str, Any] | None, timed: dict[str, Any] | None = None) -> Entry:
    planned = SEEDS * (len(task.attentions) + bool(task.equal_time)) * task.parts
    times = {} if timed is None else ratios(timed["seconds"])
    if found is None:
        return Entry(task, 0, planned, 0.0, None, times)
    runs = found["runs"]
    as_planned = [run for run in runs if task.steps is None or run["steps"] in (task.steps, task.equal_time)]
    spent = sum(minutes(runs, run["label"]) for run in runs)
    trained = any(run["label"] == "softmax" for run in runs)
    if trained:
        return Entry(task, len(as_planned), planned, spent, standing(task, found), times)
    return Entry(task, len(as_planned), planned, spent, None, times, reached(runs))


def reached(runs: list[dict[str, Any]]) -> tuple[Reached, ...]:
    language = runs[0]["task"] in LANGUAGE
    merged = one_task(runs)
    found = []
    for label in dict.fromkeys(run["label"] for run in merged):
        own = [run for run in merged if run["label"] == label]
        mean = fmean(score_of(run, language) for run in own)
        found.append(Reached(label, own[0]["steps"], len(own), mean, "nats" if language else "%"))
    return tuple(found)


def _read(path: Path) -> dict[str, Any] | None:
    return dict(json.loads(path.read_text())) if path.exists() else None
