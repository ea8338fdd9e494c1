"""Two attentions compared seed by seed.

A seed gives both the same batches, masks and crops, so that most of what differs from seed to seed is common to them: the
spread of their differences says more than the spread of either.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lln.zoo import registry
from lln_lab.experiments.evidence import FEWEST_SEEDS, missing
from lln_lab.experiments.grid import mean_and_spread
from lln_lab.experiments.verdict import FAILS, HOLDS, WITHIN, Verdict, judged

Measure = Callable[[dict[str, Any]], float]  # of a run's result; more is better
OWN = ("lln", "lln_diag", "block_diagonal")


def gains(results: Sequence[dict[str, Any]], label: str, other: str, measure: Measure) -> list[float]:
    """What `label` is ahead of `other`, for every seed that both have."""
    by_seed = {
        name: {r["seed"]: measure(r) for r in results if r["label"] == name} for name in (label, other)
    }  # fmt: skip
    return [value - by_seed[other][seed] for seed, value in by_seed[label].items() if seed in by_seed[other]]


def told(values: Sequence[float], form: str) -> str:
    """'+0.037 ± 0.008', or '+0.037' for one seed."""
    mean, spread = mean_and_spread(values)
    return f"{mean:+{form}} ± {spread:{form}}" if len(values) > 1 else f"{mean:+{form}}"


def ahead_of_linear(
    results: Sequence[dict[str, Any]],
    task: str,
    measure: Measure,
    claim: str,
    form: str = ".1f",
    label: str = "lln_diag",
) -> list[Verdict]:
    """LLN+Diag against every other linear member among the results: ahead, level or behind by the spread of the gains.

    It holds if LLN+Diag is ahead of all that have enough seeds, and within a range if it is level with some.
    """
    names = {r["label"]: r["attention"] for r in results}
    others = [x for x, name in names.items() if name not in OWN and registry.card(name).growth != "quadratic"]
    found = {other: gains(results, label, other, measure) for other in others}
    found = {other: values for other, values in found.items() if values}
    if not found:
        return []
    enough = {other: values for other, values in found.items() if len(values) >= FEWEST_SEEDS} or found
    places = [_place(values) for values in enough.values()]
    outcome = FAILS if -1 in places else HOLDS if all(places) else WITHIN
    numbers = "ahead of " + ", ".join(f"{other} by {told(values, form)}" for other, values in found.items())
    return [judged(claim, outcome, numbers, missing(results, task, [label, *enough]))]


def _place(values: Sequence[float]) -> int:
    """1 ahead, 0 level, -1 behind, by the spread over seeds."""
    mean, spread = mean_and_spread(values)
    return (mean > spread) - (mean < -spread)
