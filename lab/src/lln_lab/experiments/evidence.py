"""What a verdict needs: enough seeds for a spread, and a budget at which softmax itself has learned.

Before softmax has learned, a difference to it says who begins faster and nothing more. It has learned a task when it is at
least half of the way from guessing to what the paper reports for softmax:

    score  >=  guess + (paper - guess) / 2

where a guesser always names the most frequent class of the validation rows. Of pre-training the paper gives a curve and no
number: there softmax has to be half a nat below a guesser who knows how frequent each token is and nothing else. Tasks that
the paper does not have need a score that is ours (`OUR_SOFTMAX`). Several tasks that count as one, by their mean, are named
`sst2+qnli`; the paper's score is the mean over them.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from lln_lab import data
from lln_lab.experiments.grid import mean_and_spread
from lln_lab.experiments.training.run import LANGUAGE

FEWEST_SEEDS = 3
NATS = 0.5
PAPER_SOFTMAX = {
    "mnli": 0.803, "qnli": 0.872, "qqp": 0.899, "sst2": 0.906,  # Table 1
    "dogs_vs_cats": 0.8137,  # Table 3
    "text": 0.6041, "listops": 0.3805, "retrieval": 0.7995, "pathfinder": 0.713, "image": 0.372,  # Table 5
}  # fmt: skip
OUR_SOFTMAX = {"imdb": 0.80, "cifar10": 0.50}  # tasks that are not in the paper: the score itself, chosen by us
METRICS = ("accuracy", "matthews", "pearson")


def most_frequent(rows: data.Rows) -> float:
    """The share of the most frequent class: the accuracy of who always names it."""
    counts = Counter(int(rows[i]["label"]) for i in range(len(rows)))
    return max(counts.values()) / sum(counts.values())


def by_frequency(training: Tensor, held_out: Tensor, vocabulary: int) -> float:
    """Nats a token of who knows the tokens' frequencies in the training text, each counted once more than it occurs."""
    counts = torch.bincount(training.flatten(), minlength=vocabulary).double() + 1
    probabilities = counts / counts.sum()
    return float(-probabilities.log()[held_out.flatten()].mean())


def missing(
    results: Sequence[Mapping[str, Any]], task: str, labels: Sequence[str], learner: str = "softmax"
) -> list[str]:
    """What a verdict on these labels lacks, in words; nothing: []. `learner` is who has to have learned the task."""
    own = [r for r in results if r["task"] == task]
    return [*_seeds(own, labels), *_learning([r for r in own if r["label"] == learner], task, learner)]


def _seeds(results: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[str]:
    counts = {label: len({r["seed"] for r in results if r["label"] == label}) for label in labels}
    fewest = min(counts.values())
    if fewest >= FEWEST_SEEDS:
        return []
    return [f"a spread needs {FEWEST_SEEDS} seeds (there {'is' if fewest == 1 else 'are'} {fewest})"]


def _learning(results: Sequence[Mapping[str, Any]], task: str, learner: str) -> list[str]:
    if not results:
        return [f"{learner} was not run"]
    guess = results[0].get("data", {}).get("guessing")
    if guess is None:
        return [f"the accuracy of guessing was not recorded, so it is unknown whether {learner} has learned"]
    if task in LANGUAGE:
        reached, needed = mean_and_spread([r["evaluation"]["loss"] for r in results])[0], float(guess) - NATS
        if math.isnan(reached) or reached > needed:
            told = f"loss {reached:.3f}; needed: {needed:.3f}, {NATS} below guessing by frequency"
            return [f"{learner} has not learned in {results[0]['steps']:,} steps ({told})"]
        return []
    level = level_of(task, guess)
    if level is None:
        return ["the paper reports no softmax score for this task"]
    reached = mean_and_spread([_score(r) for r in results])[0]
    if task in OUR_SOFTMAX:
        needed, why = level, "chosen for a task that the paper does not have"
    else:
        needed = guess + (level - guess) / 2
        why = f"halfway from guessing, {100 * guess:.1f} %, to the paper's {100 * level:.1f} %"
    if math.isnan(reached) or reached < needed:
        told = f"{100 * reached:.1f} %; needed: {100 * needed:.1f} %, {why}"
        return [f"{learner} has not learned in {results[0]['steps']:,} steps ({told})"]
    return []


def level_of(task: str, guess: float | None) -> float | None:
    """The score of a softmax that has learned the task: the paper's, or ours; None where there is neither."""
    if task in LANGUAGE:
        return None if guess is None else guess - NATS
    if task in OUR_SOFTMAX:
        return OUR_SOFTMAX[task]
    parts = task.split("+")
    return fmean(PAPER_SOFTMAX[part] for part in parts) if all(part in PAPER_SOFTMAX for part in parts) else None


def _score(result: Mapping[str, Any]) -> float:
    return float(next(value for name, value in result["evaluation"].items() if name in METRICS))
