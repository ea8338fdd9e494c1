"""The CPU time of a training step, attention beside attention: what `lln evidence --time` measures.

The long runs come from several sessions and machines, so their times do not compare. These runs are short and took turns:

    time of an attention  =  median over rounds of  seconds of its step / seconds of softmax's step in the same round

A round is a seed, a step's seconds are the median over the run's steps, and of several tasks that count as one, the mean.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lln.results import write_result

FILE = "step_times.json"
TITLE = "CPU time of a training step, softmax = 1"
Seconds = Mapping[str, list[float]]  # label -> of a step, round by round


def seconds_of(runs: list[dict[str, Any]]) -> Seconds:
    """Those of a result's runs."""
    labels, rounds = dict.fromkeys(run["label"] for run in runs), sorted({run["seed"] for run in runs})

    def of(label: str, seed: int) -> float:
        return fmean(run["cpu_seconds_per_step"] for run in runs if (run["label"], run["seed"]) == (label, seed))

    return {label: [of(label, seed) for seed in rounds] for label in labels}


def ratios(seconds: Seconds) -> dict[str, float]:
    """Softmax = 1."""
    return {
        label: median(a / b for a, b in zip(own, seconds["softmax"], strict=True)) for label, own in seconds.items()
    }


def keep(folder: Path, task: str, result: Path) -> Path:
    """Put what a result measured beside what is known of other tasks."""
    found = json.loads(result.read_text())
    measured = {"command": found["provenance"]["command"], "seconds": seconds_of(found["runs"])}
    tasks = {**read(folder), task: measured}
    return write_result(
        folder / FILE, {"experiment": "step_times", "title": TITLE, "tasks": tasks, "tables": [table(tasks)]}
    )


def table(tasks: Mapping[str, Any]) -> dict[str, Any]:
    """A row per task, for the report; None where an attention did not run."""
    found = {task: ratios(measured["seconds"]) for task, measured in tasks.items()}
    labels = list(dict.fromkeys(label for times in found.values() for label in times))
    rows = [
        [task, *(round(times[label], 2) if label in times else None for label in labels)]
        for task, times in found.items()
    ]
    return {"title": TITLE, "note": "The median over rounds.", "columns": ["task", *labels], "rows": rows}


def read(folder: Path) -> dict[str, Any]:
    """What is known, task by task; {} where nothing is."""
    path = folder / FILE
    return dict(json.loads(path.read_text())["tasks"]) if path.exists() else {}
