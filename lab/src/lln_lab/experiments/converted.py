"""Verdicts on converted encoders: each against its own softmax self, fine-tuned alike."""

from collections.abc import Sequence
from typing import Any

from lln_lab.experiments import scores
from lln_lab.experiments.pairs import on_a_par
from lln_lab.experiments.verdict import Verdict


def against_softmax(results: Sequence[dict[str, Any]], task: str, does: str, margin: float) -> list[Verdict]:
    """Whether the encoder, converted to each attention, `does` ("classifies reviews") as well as softmax."""
    own = [r for r in results if r["task"] == task]
    of_softmax = [scores.score_of(r) for r in own if r["label"] == "softmax"]
    if not of_softmax:
        return []
    found = []
    for label in dict.fromkeys(r["label"] for r in own if r["attention"] != "softmax"):
        reached = scores.percent([scores.score_of(r) for r in own if r["label"] == label])
        numbers = f"{reached} against {scores.percent(of_softmax)} of softmax"
        claim = f"the encoder converted to {label} {does} as well as its softmax self"
        found += on_a_par(own, task, label, "softmax", scores.points, claim, numbers, ".2f", margin)
    return found
