"""Figures 8b and 10b: the inverse of float16's loss scale.

The scale halves when a gradient overflows and doubles when none has for a while, so its inverse follows the largest gradients:
where it settles higher, training is closer to overflow.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from lln_lab.experiments.evidence import missing
from lln_lab.experiments.grid import mean_and_spread
from lln_lab.experiments.verdict import Verdict, judged, no_worse

KEY = "inverse_loss_scale"


def settled(result: dict[str, Any]) -> float | None:
    """log2 of the inverse scale, mean over the second half of training; None where no scale was noted."""
    late = [math.log2(x[KEY]) for x in result["history"] if KEY in x and x["step"] >= result["steps"] / 2]
    return fmean(late) if late else None


def table(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Largest and settled inverse scale of every attention."""
    rows: list[list[Any]] = []
    for label in dict.fromkeys(r["label"] for r in results):
        own = [r for r in results if r["label"] == label and settled(r) is not None]
        if own:
            largest = max(x[KEY] for r in own for x in r["history"] if KEY in x)
            late = fmean(float(settled(r) or 0.0) for r in own)
            rows.append([label, f"2^{math.log2(largest):.0f}", f"2^{late:.1f}"])
    columns = ["attention", "largest", "second half"]
    note = "Of float16; means over seeds are means of powers of two."
    return {"title": "Inverse loss scale", "note": note, "columns": columns, "rows": rows}


def no_larger(
    results: Sequence[dict[str, Any]], task: str, label: str, other: str, claim: str, learner: str, larger: bool = False
) -> list[Verdict]:
    """Whether `label` settles no higher than `other`, or (`larger`) higher, by the spread over seeds."""
    found = {name: [settled(r) for r in results if r["label"] == name] for name in (label, other)}
    values = {name: [x for x in own if x is not None] for name, own in found.items()}
    if not all(values.values()):
        return []
    (mean, spread), (mean_other, spread_other) = (mean_and_spread(own) for own in values.values())
    margin = max(spread, spread_other)
    gap = mean_other - mean + margin if larger else mean - mean_other - margin
    numbers = f"inverse loss scale in the second half: 2^{mean:.1f} of {label} and 2^{mean_other:.1f} of {other}"
    return [judged(claim, no_worse(gap, 0.0), numbers, missing(results, task, [label, other], learner))]
