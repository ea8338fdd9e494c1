"""What a task's runs say: each attention against softmax seed by seed, at equal steps and at equal time.

    gain = score of the attention − score of softmax with the same seed      (points; nats of loss with the sign turned)

with the interval of `lln_lab.experiments.pairs`, widened for the attentions compared on the task. At equal time softmax trains
for the steps that fit into LLN+Diag's CPU time, with a schedule that ends there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from lln_lab.evidence.plan import COMPARED, OURS, SEEDS, Task
from lln_lab.experiments.evidence import level_of, missing
from lln_lab.experiments.fig8 import minus_loss
from lln_lab.experiments.grid import mean_and_spread
from lln_lab.experiments.pairs import Gain, gain, gains
from lln_lab.experiments.scores import points
from lln_lab.experiments.training.run import LANGUAGE

AHEAD, ALIKE, BEHIND, OPEN = "ahead", "not behind", "behind", "too few seeds"


@dataclass(frozen=True)
class Compared:
    """One attention against softmax on one task."""

    attention: str
    score: float
    spread: float
    seeds: int
    gain: Gain

    @property
    def outcome(self) -> str:
        """What the interval decides. One that holds zero: not behind."""
        if self.seeds < SEEDS:
            return OPEN
        return AHEAD if self.gain.ahead else BEHIND if self.gain.behind else ALIKE


@dataclass(frozen=True)
class Standing:
    """A task's runs: softmax, the others against it, and what is missing."""

    task: Task
    unit: str  # "%" or "nats"
    softmax: float  # score, mean over seeds
    steps: int
    equal_steps: tuple[Compared, ...]
    softmax_in_time: tuple[float, int] | None  # score and steps of softmax in LLN+Diag's time
    equal_time: tuple[Compared, ...]
    minutes: dict[str, float]  # CPU minutes of a run by label, mean over seeds
    lacks: tuple[str, ...]  # what a verdict needs and the runs do not have
    guessing: float | None = None  # the score of who has learned nothing, where it was recorded
    level: float | None = None  # that of who has learned the task, where there is one

    @property
    def complete(self) -> bool:
        """Whether each of ours has all its seeds."""
        return set(OURS) <= {one.attention for one in self.equal_steps if one.seeds >= SEEDS}

    @property
    def form(self) -> str:
        return ".3f" if self.unit == "nats" else ".1f"

    def ranks(self, names: Sequence[str] | None = None) -> dict[str, float]:
        """1 for the best mean score of these attentions (None: all); equal scores share a place."""
        scores = {"softmax": self.softmax, **{one.attention: one.score for one in self.equal_steps}}
        scores = {name: score for name, score in scores.items() if names is None or name in names}
        best = -1 if self.unit == "nats" else 1
        return {
            name: 1
            + sum(best * other > best * own for other in scores.values())
            + (sum(other == own for other in scores.values()) - 1) / 2
            for name, own in scores.items()
        }


def standing(task: Task, found: dict[str, Any]) -> Standing:
    runs = one_task(found["runs"])
    language = runs[0]["task"] in LANGUAGE
    measure = minus_loss if language else points
    common = max(run["steps"] for run in runs if run["label"] == "softmax")
    shorter = [run for run in runs if run["attention"] == "softmax" and run["steps"] < common]
    own = [name for name in COMPARED if any(run["label"] == name for run in runs)]
    ours = [name for name in own if name in OURS]
    with_seeds = [name for name in ours if len({run["seed"] for run in runs if run["label"] == name}) >= SEEDS]

    def against(other: str) -> tuple[Compared, ...]:
        return tuple(_compared(runs, name, other, measure, len(own), language) for name in own)

    guess = runs[0].get("data", {}).get("guessing")
    level = level_of(runs[0]["task"], guess)
    return Standing(
        task=task,
        unit="nats" if language else "%",
        softmax=fmean(score_of(run, language) for run in runs if run["label"] == "softmax"),
        steps=common,
        equal_steps=against("softmax"),
        softmax_in_time=(fmean(score_of(r, language) for r in shorter), shorter[0]["steps"]) if shorter else None,
        equal_time=against(shorter[0]["label"]) if shorter else (),
        minutes={label: minutes(runs, label) for label in dict.fromkeys(r["label"] for r in runs)},
        lacks=tuple(
            missing(runs, runs[0]["task"], ["softmax", *(with_seeds or ours)])
        ),  # others are open by themselves
        guessing=None if guess is None else guess * (1 if language else 100),
        level=None if level is None else level * (1 if language else 100),
    )


def in_time_only(task: Task, found: dict[str, Any]) -> Standing:
    """Of a longer budget that softmax has run in LLN+Diag's time alone: there is nothing to say at equal steps."""
    runs = found["runs"]
    common = max(run["steps"] for run in runs)
    softmax = [run for run in runs if run["attention"] == "softmax"]
    label, steps = softmax[0]["label"], softmax[0]["steps"]
    own = [name for name in COMPARED if any(run["label"] == name for run in runs)]
    reached = fmean(points(run) for run in softmax)
    return Standing(
        task=replace(task, title=f"{task.title}, {common:,} steps"),
        unit="%",
        softmax=reached,
        steps=steps,
        equal_steps=(),
        softmax_in_time=(reached, steps),
        equal_time=tuple(_compared(runs, name, label, points, len(own), False) for name in own),
        minutes={each: minutes(runs, each) for each in dict.fromkeys(r["label"] for r in runs)},
        lacks=tuple(missing(runs, runs[0]["task"], [label, *own], learner=label)),
    )


def one_task(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs, with those of several tasks (GLUE) made into one by their mean score."""
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    if len(tasks) == 1:
        return list(runs)
    merged = []
    for first in [run for run in runs if run["task"] == tasks[0]]:
        same = [r for r in runs if (r["label"], r["seed"]) == (first["label"], first["seed"])]
        if len(same) == len(tasks):
            score = fmean(points(r) / 100 for r in same)
            guessing = {**first["data"], "guessing": fmean(r["data"]["guessing"] for r in same)}
            one = {"task": "+".join(tasks), "evaluation": {"accuracy": score}, "data": guessing}
            merged.append({**first, **one, "cpu_seconds_per_step": _mean_of_known(same, "cpu_seconds_per_step")})
    return merged


def _mean_of_known(runs: Sequence[dict[str, Any]], name: str) -> float | None:
    known = [run[name] for run in runs if run[name] is not None]
    return fmean(known) if known else None


def _compared(
    runs: Sequence[dict[str, Any]], name: str, other: str, measure: Any, comparisons: int, language: bool
) -> Compared:
    values = gains(runs, name, other, measure)
    score, spread = mean_and_spread([score_of(r, language) for r in runs if r["label"] == name])
    return Compared(name, score, spread, len(values), gain(values, comparisons))


def score_of(run: dict[str, Any], language: bool) -> float:
    return float(run["evaluation"]["loss"]) if language else points(run)


def minutes(runs: Sequence[dict[str, Any]], label: str) -> float:
    """CPU minutes of one run, over seeds. A run resumed after its last step has no time of its own."""
    own = [r for r in runs if r["label"] == label and r["cpu_seconds_per_step"] is not None]
    return fmean(r["cpu_seconds_per_step"] * r["steps"] / 60 for r in own) if own else 0.0
