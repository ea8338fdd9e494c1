"""Runs of an earlier result: whoever adds a seed or an attention to it need not train the others again.

A result's JSON holds every run whole: what defines it and what came out. `restore` lays its runs into a folder as if they had
just finished there. The experiment then reads those that it would have started itself; one with the same name and another
definition is refused by the run, as always. Runs of other steps than the new ones are left out, except where an attention
with steps of its own asks for them: a run of 2,000 steps is that of `softmax#2000`, whatever the others train for.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lln.writing import whole
from lln_lab.experiments.contestants import Contestant, each_once
from lln_lab.experiments.training.budget import Budget
from lln_lab.experiments.training.run import CONFIG, RESULT, Run, described


def restore(result: Path, folder: Path, asked: Sequence[str] = (), steps: int | None = None) -> tuple[int, int]:
    """Lay the runs of `result` into `folder`; a run that has begun there is left alone.

    How many were laid, and how many were left out for their steps.

    `asked`: attentions as on the command line; `steps`: those of the new runs, None for the preset's.
    """
    try:
        runs = json.loads(result.read_text())["runs"]
        found = [(_run(each), each) for each in runs]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{result} holds no runs of a training experiment: {error!r}") from None
    labels = {each.label for each in each_once(asked)}
    fitting = [(fits, each) for run, each in found if (fits := _as_asked(run, labels, steps))]
    if found and not fitting:
        there = ", ".join(f"{count:,}" for count in sorted({run.budget.steps for run, _ in found}))
        raise ValueError(
            f"{result} holds no runs of {steps:,} steps, but of {there}: leave --known out, or train as long"
        )
    return sum(_lay(run, each, folder) for run, each in fitting), len(found) - len(fitting)


def _as_asked(run: Run, labels: set[str], steps: int | None) -> Run | None:
    """The run under the name by which it is asked for; None where it trained for another number of steps."""
    own = Contestant(run.attention, run.options, steps=run.budget.steps).label
    if own in labels:
        return replace(run, label=own, own_steps=True)
    return run if run.own_steps or steps in (None, run.budget.steps) else None


def _lay(run: Run, found: dict[str, Any], folder: Path) -> bool:
    place = folder / run.name
    if place.exists():
        return False
    place.mkdir(parents=True)
    _write(place / CONFIG, {"provenance": found.get("provenance"), **described(run)})
    _write(place / RESULT, {**found, "label": run.label})  # last: with it the run is over
    return True


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
