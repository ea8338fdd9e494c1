"""Runs of an earlier result: whoever adds a seed or an attention to it need not train the others again.

A result's JSON holds every run whole: what defines it and what came out. `restore` lays its runs into a folder as if they had
just finished there. The experiment then reads those that it would have started itself; one with the same name and another
definition is refused by the run, as always.
"""

import json
from pathlib import Path
from typing import Any

from lln.writing import whole
from lln_lab.experiments.training.budget import Budget
from lln_lab.experiments.training.run import CONFIG, RESULT, Run, described


def restore(result: Path, folder: Path) -> int:
    """Lay the runs of `result` into `folder`; a run that has begun there is left alone. How many were laid."""
    try:
        runs = json.loads(result.read_text())["runs"]
        restored = [(_run(found), found) for found in runs]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{result} holds no runs of a training experiment: {error!r}") from None
    laid = 0
    for run, found in restored:
        place = folder / run.name
        if not place.exists():
            place.mkdir(parents=True)
            _write(place / CONFIG, {"provenance": found.get("provenance"), **described(run)})
            _write(place / RESULT, found)  # last: with it the run is over
            laid += 1
    return laid


def _run(found: dict[str, Any]) -> Run:
    """What defined it; a budget from before an option existed has that option's default."""
    budget = Budget(**found["budget"])
    own_steps = f"{budget.steps:,} steps" in found["label"]
    return Run(
        found["task"], found["attention"], found["seed"], budget, found["label"], found["options"], found["model"],
        found["data"], own_steps,
    )  # fmt: skip


def _write(path: Path, content: dict[str, Any]) -> None:
    with whole(path) as aside:
        aside.write_text(json.dumps(content, indent=1) + "\n")
