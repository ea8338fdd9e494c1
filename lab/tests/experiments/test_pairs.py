"""Attentions compared seed by seed."""

from typing import Any

import pytest

from lln_lab.experiments.pairs import ahead_of_linear, gains, told


def result(name: str, seed: int, score: float, label: str = "") -> dict[str, Any]:
    learned = {"evaluation": {"accuracy": 0.9}, "data": {"guessing": 0.5}, "steps": 1, "task": "text"}
    return {"attention": name, "label": label or name, "seed": seed, "score": score, **learned}


def score(r: dict[str, Any]) -> float:
    return float(r["score"])


RUNS = [result("lln_diag", seed, value) for seed, value in enumerate((5.0, 9.0, 7.0))]


def test_gains_are_taken_at_the_same_seed() -> None:
    runs = [*RUNS, result("elu", 2, 6.5), result("elu", 0, 4.0)]
    assert gains(runs, "lln_diag", "elu", score) == [1.0, 0.5]
    assert told([1.0, 0.5], ".2f") == "+0.75 ± 0.35" and told([-1.0], ".1f") == "-1.0"


@pytest.mark.parametrize(
    "others, outcome",
    [
        ({"elu": (4.0, 8.0, 6.1)}, "holds"),  # ahead by about one at every seed, though the seeds differ by two
        ({"elu": (4.0, 8.0, 6.1), "cosformer": (5.5, 8.5, 7.1)}, "holds within a range"),
        ({"elu": (4.0, 8.0, 6.1), "cosformer": (5.5, 9.6, 7.4)}, "does not hold"),
        ({"elu": (4.0,)}, "inconclusive"),
    ],
)
def test_ahead_level_or_behind_by_the_spread_of_the_gains(others: dict[str, tuple[float, ...]], outcome: str) -> None:
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
