"""Attentions compared seed by seed."""

import math
from typing import Any

import pytest

from lln_lab.experiments.pairs import Gain, ahead_of_linear, gain, gains, on_a_par


def result(name: str, seed: int, score: float, label: str = "") -> dict[str, Any]:
    learned = {"evaluation": {"accuracy": 0.9}, "data": {"guessing": 0.5}, "steps": 1, "task": "text"}
    return {"attention": name, "label": label or name, "seed": seed, "score": score, **learned}


def score(r: dict[str, Any]) -> float:
    return float(r["score"])


RUNS = [result("lln_diag", seed, value) for seed, value in enumerate((5.0, 9.0, 7.0))]


def test_gains_are_taken_at_the_same_seed() -> None:
    runs = [*RUNS, result("elu", 2, 6.5), result("elu", 0, 4.0)]
    assert gains(runs, "lln_diag", "elu", score) == [1.0, 0.5]


def test_the_interval_is_students_over_the_gains() -> None:
    found = gain([1.0, 2.0, 3.0])  # mean 2, deviation 1, t = 4.303 with two degrees of freedom
    assert (found.low, found.high) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4)
    assert gain([1.0, 2.0, 3.0], comparisons=5).low < found.low, "several comparisons widen it"
    assert found.told(".1f") == "+2.0 [-0.5, +4.5]" and gain([-1.0]).told(".1f") == "-1.0"
    assert gain([1.0, math.nan]).behind, "a run that diverged"
    assert -Gain(1.0, 0.5, 2.0) == Gain(-1.0, -2.0, -0.5)


@pytest.mark.parametrize(
    "others, outcome",
    [
        ((5.1, 9.2, 7.0), "holds"),  # behind by a tenth, and surely by less than one
        ((6.0, 10.1, 8.1), "does not hold"),
        ((6.0, 8.0, 7.5), "inconclusive"),  # the same mean as above it, and seeds that disagree
        ((6.0,), "inconclusive"),
    ],
)
def test_on_a_par_where_the_interval_stays_above_the_margin(others: tuple[float, ...], outcome: str) -> None:
    runs = [*RUNS, *(result("softmax", seed, x) for seed, x in enumerate(others))]
    (verdict,) = on_a_par(runs, "text", "lln_diag", "softmax", score, "claim", "", ".1f", margin=1.0)
    assert verdict.outcome == outcome


@pytest.mark.parametrize(
    "others, outcome",
    [
        ({"elu": (4.0, 8.0, 6.1)}, "holds"),  # ahead by about one at every seed, though the seeds differ by two
        ({"elu": (4.0, 8.0, 6.1), "cosformer": (5.5, 8.5, 7.1)}, "holds within a range"),
        ({"elu": (4.0, 8.0, 6.1), "cosformer": (5.9, 9.9, 7.8)}, "does not hold"),
        ({"elu": (4.0,)}, "inconclusive"),
    ],
)
def test_ahead_undecided_or_behind_by_the_interval_of_the_gains(
    others: dict[str, tuple[float, ...]], outcome: str
) -> None:
    runs = [*RUNS, result("softmax", 0, 9.0)]
    runs += [result(name, seed, x) for name, values in others.items() for seed, x in enumerate(values)]
    (verdict,) = ahead_of_linear(runs, "text", score, "claim")
    assert verdict.outcome == outcome and all(name in verdict.numbers for name in others)


def test_softmax_and_its_own_parts_are_not_among_the_others() -> None:
    own = [result(name, 0, 1.0) for name in ("softmax", "lln", "block_diagonal")]
    assert (
        ahead_of_linear([*RUNS, *own, result("lln_diag", 0, 2.0, "lln_diag (target=paper)")], "text", score, "claim")
        == []
    )
