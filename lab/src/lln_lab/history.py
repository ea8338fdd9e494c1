"""The curve of a logged training loss, without the saw-tooth of logs that come out of turn.

A logged loss is the mean over the steps since the log before it. A log out of turn (step 51 between 50 and 60) cuts such a
stretch in two, a short and noisy one and a long one. Here the parts are put together again, weighted by their steps.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

Curve = list[tuple[int, float]]
MEANS = ("loss",)  # what a Trainer logs as a mean since the log before


def curve(history: Iterable[dict[str, Any]], key: str) -> Curve:
    """(step, value) of every entry that has the key, in regular stretches where the value is a mean over a stretch."""
    points = [(int(row["step"]), row[key]) for row in history if row.get(key) is not None]
    return regular(points) if key in MEANS else points


def regular(points: Sequence[tuple[int, float]]) -> Curve:
    """Means over stretches of the usual length: parts of a stretch are joined."""
    lengths = Counter(after - before for before, after in pairwise([0, *(step for step, _ in points)]))
    if not lengths:
        return []
    usual = max(1, max(lengths, key=lambda length: (lengths[length], length)))
    found: Curve = []
    total, weight, before = 0.0, 0, 0
    for step, value in points:
        steps = max(step - before, 1)  # a run of one point, at step 0, has no stretch before it
        total, weight, before = total + value * steps, weight + steps, step
        if step % usual == 0 or step == points[-1][0]:
            found.append((step, total / weight))
            total, weight = 0.0, 0
    return found
