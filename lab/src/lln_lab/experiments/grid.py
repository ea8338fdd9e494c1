"""Many runs, one after the other, each in a folder of its own: those that are finished are read, not run again."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lln_lab.data import TaskData
from lln_lab.experiments.training import Run
from lln_lab.experiments.training.watch import OnStep


class Watcher(Protocol):
    """Is told which run begins and how far it is."""

    def begin(self, name: str, number: int, of: int) -> OnStep: ...


@dataclass(frozen=True)
class Job:
    run: Run
    start: Callable[[Path, OnStep | None], dict[str, Any]]  # (folder, on_step) -> result


def run_all(jobs: Sequence[Job], folder: Path, watcher: Watcher | None = None) -> list[dict[str, Any]]:
    """The results in the order of the jobs."""
    results = []
    for number, job in enumerate(jobs, start=1):
        on_step = watcher.begin(job.run.name, number, len(jobs)) if watcher is not None else None
        results.append(job.start(folder / job.run.name, on_step))
    return results


def data_record(data: TaskData) -> dict[str, Any]:
    """What a result says of its data; a directory by its name only."""
    named = data.source.startswith(("embedded", "hub:"))
    return {
        "name": data.name,
        "source": data.source if named else Path(data.source).name,
        "rows": {"train": len(data.train), "validation": len(data.validation)},
        "files": data.files,
    }


def by_label(results: Sequence[dict[str, Any]], measure: str) -> dict[str, list[float]]:
    """label -> the measure of every seed."""
    found: dict[str, list[float]] = {}
    for result in results:
        found.setdefault(result["label"], []).append(float(result["evaluation"][measure]))
    return found


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and standard deviation over seeds (0 for one); both NaN if a run diverged."""
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
