"""Two attentions compared seed by seed, with an interval.

A seed gives both the same batches, masks and crops, so that most of what differs from seed to seed is common to them. With
g_1 … g_n the gains of one over the other at n seeds,

    mean(g) ± t · s(g) / √n,      t = Student's quantile at 1 − 0.05 / (2 m), n − 1 degrees of freedom

holds the true gain in 95 of 100 cases, all m comparisons of one table together (Bonferroni). A verdict is given only where
this interval decides: ahead if it is above zero, behind if it is below, on a par if it stays above minus the margin.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import t as student

from lln.zoo import registry
from lln_lab.experiments.evidence import FEWEST_SEEDS, missing
from lln_lab.experiments.verdict import FAILS, HOLDS, OPEN, WITHIN, Verdict, judged

Measure = Callable[[dict[str, Any]], float]  # of a run's result; more is better
OWN = ("lln", "lln_diag", "near_far", "block_diagonal")
ERROR_RATE = 0.05


@dataclass(frozen=True)
class Gain:
    """How far one attention is ahead of another: the mean over seeds, and the interval."""

    mean: float
    low: float
    high: float

    @property
    def ahead(self) -> bool:
        return self.low > 0

    @property
    def behind(self) -> bool:
        return self.high < 0

    def told(self, form: str) -> str:
        """'+0.037 [+0.017, +0.057]', or '+0.037' where one seed leaves no interval."""
        mean = f"{self.mean:+{form}}"
        return f"{mean} [{self.low:+{form}}, {self.high:+{form}}]" if math.isfinite(self.high - self.low) else mean

    def __neg__(self) -> "Gain":
        return Gain(-self.mean, -self.high, -self.low)


def gains(results: Sequence[dict[str, Any]], label: str, other: str, measure: Measure) -> list[float]:
    """What `label` is ahead of `other`, for every seed that both have."""
    by_seed = {
        name: {r["seed"]: measure(r) for r in results if r["label"] == name} for name in (label, other)
    }  # fmt: skip
    return [value - by_seed[other][seed] for seed, value in by_seed[label].items() if seed in by_seed[other]]


def gain(values: Sequence[float], comparisons: int = 1) -> Gain:
    """The interval of gains at several seeds; one seed leaves it open, and a run that diverged is behind."""
    if not all(map(math.isfinite, values)):
        return Gain(math.nan, -math.inf, -math.inf)
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return Gain(mean, -math.inf, math.inf)
    quantile = float(student.ppf(1 - ERROR_RATE / (2 * comparisons), count - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(count)
    return Gain(mean, mean - half, mean + half)


def on_a_par(
    results: Sequence[dict[str, Any]],
    task: str,
    label: str,
    other: str,
    measure: Measure,
    claim: str,
    numbers: str,
    form: str,
    margin: float,
    ahead: bool = False,
    learner: str = "softmax",
) -> list[Verdict]:
    """Whether `label` is no worse than `other` by more than the margin, or (`ahead`) better than it."""
    values = gains(results, label, other, measure)
    if not values:
        return []
    found = gain(values)
    numbers += f"; gain seed by seed {found.told(form)}"
    if found.behind:
        outcome = FAILS
    elif found.ahead or (not ahead and found.low >= -margin):
        outcome = HOLDS
    else:
        outcome = OPEN
    lacks = missing(results, task, [label, other], learner)
    if outcome == OPEN and not lacks:
        lacks = [f"the interval reaches {found.low:+{form}}, where {0.0 if ahead else -margin:+{form}} would decide"]
    return [judged(claim, outcome, numbers, lacks)]


def ahead_of_linear(
    results: Sequence[dict[str, Any]],
    task: str,
    measure: Measure,
    claim: str,
    form: str = ".1f",
    label: str = "lln_diag",
) -> list[Verdict]:
    """LLN+Diag against every other linear member among the results.

    It holds if LLN+Diag is ahead of all that have enough seeds, within a range if the interval does not decide against some,
    and not if it is behind one. Where it decides against none, there is no verdict.
    """
    names = {r["label"]: r["attention"] for r in results}
    others = [x for x, name in names.items() if name not in OWN and registry.card(name).growth != "quadratic"]
    values = {other: gains(results, label, other, measure) for other in others}
    values = {other: own for other, own in values.items() if own}
    if not values:
        return []
    enough = [other for other, own in values.items() if len(own) >= FEWEST_SEEDS] or list(values)
    found = {other: gain(own, len(enough)) for other, own in values.items()}
    won = [other for other in enough if found[other].ahead]
    lost = any(found[other].behind for other in enough)
    outcome = FAILS if lost else HOLDS if len(won) == len(enough) else WITHIN if won else OPEN
    numbers = "ahead of " + ", ".join(f"{other} by {each.told(form)}" for other, each in found.items())
    lacks = missing(results, task, [label, *enough])
    if outcome == OPEN and not lacks:
        lacks = ["every interval includes zero"]
    return [judged(claim, outcome, numbers, lacks)]
