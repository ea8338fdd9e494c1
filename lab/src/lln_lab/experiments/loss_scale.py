"""Figures 8b and 10b: the inverse of float16's loss scale.

The scale halves when a gradient overflows and doubles when none has for a while, so its inverse follows the largest gradients:
where it settles higher, training is closer to overflow.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from lln_lab.experiments.pairs import on_a_par
from lln_lab.experiments.verdict import Verdict

KEY = "inverse_loss_scale"
POWERS_ALIKE = 0.5  # the scale moves by powers of two; half of one is taken for none


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
    """Whether `label` settles no higher than `other`, or (`larger`) higher, seed by seed."""
    noted = {name: [settled(r) for r in results if r["label"] == name] for name in (label, other)}
    late = {name: [x for x in own if x is not None] for name, own in noted.items()}
    if not all(late.values()):
        return []
    of_label, of_other = (fmean(own) for own in late.values())
    numbers = f"inverse loss scale in the second half: 2^{of_label:.1f} of {label} and 2^{of_other:.1f} of {other}"

    def measure(result: dict[str, Any]) -> float:
        return (settled(result) or 0.0) * (1 if larger else -1)

    return on_a_par(results, task, label, other, measure, claim, numbers, ".1f", POWERS_ALIKE, larger, learner)
