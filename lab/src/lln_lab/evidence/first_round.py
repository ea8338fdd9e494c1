"""A first round over every member that reads in both directions: short runs, one seed, to find the best of the others.

    mean rank of a member = mean over tasks of its place by accuracy      (1 is best; equal scores share a place)

The runs are those with seed 0 of the Long Range Arena results that share steps, model and data. After so few steps a place
says who begins faster; it chooses an opponent for the long runs and nothing else.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lln.zoo import registry
from lln_lab.evidence.plan import OURS

FILES = ("lra.json", "lra_others.json", "lra_rivals.json")


@dataclass(frozen=True)
class Place:
    """A member's accuracy in per cent on each task, and its mean rank over them."""

    member: str
    scores: dict[str, float]
    rank: float


def first_round(results: Path) -> list[Place]:
    """Members with a score on every task, the best first; [] where no results are."""
    scores = _scores(results)
    tasks = sorted({task for found in scores.values() for task in found})
    complete = {member: found for member, found in scores.items() if len(found) == len(tasks)}
    ranks = {
        member: fmean(_place(found[task], [other[task] for other in complete.values()]) for task in tasks)
        for member, found in complete.items()
    }
    return sorted((Place(m, complete[m], ranks[m]) for m in complete), key=lambda place: (place.rank, place.member))


def best_of_the_others(places: list[Place]) -> str | None:
    """The best linear member that is not ours."""
    linear = (p.member for p in places if p.member not in OURS and registry.member(p.member).card.growth == "linear")
    return next(linear, None)


def _scores(results: Path) -> dict[str, dict[str, float]]:
    """member -> task -> accuracy in per cent. Of a member that ran twice the first run counts."""
    scores: dict[str, dict[str, float]] = {}
    alike: dict[str, Any] = {}  # what a task's runs must share to be compared
    for path in (results / name for name in FILES):
        if not path.exists():
            continue
        for run in json.loads(path.read_text())["runs"]:
            if run["seed"] or run["label"] != run["attention"]:
                continue
            setting = (run["steps"], run["model"]["length"], run["data"]["rows"])
            if alike.setdefault(run["task"], setting) != setting:
                raise ValueError(f"{path.name}: {run['task']} ran with {setting}, elsewhere with {alike[run['task']]}")
            scores.setdefault(run["attention"], {}).setdefault(run["task"], 100 * run["evaluation"]["accuracy"])
    return scores


def _place(own: float, all_scores: list[float]) -> float:
    better = sum(score > own for score in all_scores)
    return 1 + better + (all_scores.count(own) - 1) / 2
