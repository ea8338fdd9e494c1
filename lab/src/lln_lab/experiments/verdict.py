"""What became of a claim, in words and numbers; and what is missing where nothing can be said yet."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

HOLDS = "holds"
WITHIN = "holds within a range"
FAILS = "does not hold"
OPEN = "inconclusive"  # something is missing: seeds, or a budget at which softmax itself learns
OUTCOMES = (HOLDS, WITHIN, FAILS, OPEN)


@dataclass(frozen=True)
class Verdict:
    claim: str  # as the paper makes it
    outcome: str  # HOLDS, WITHIN, FAILS or OPEN
    numbers: str  # what was measured, and what is missing

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"an outcome is one of {', '.join(map(repr, OUTCOMES))}, not {self.outcome!r}")

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def judged(claim: str, outcome: str, numbers: str, missing: Sequence[str]) -> Verdict:
    """The verdict, or what is missing for one."""
    if not missing:
        return Verdict(claim, outcome, numbers)
    return Verdict(claim, OPEN, f"{numbers}; no verdict because {' and '.join(missing)}")


def by_what_is_missing(
    verdicts: Sequence[dict[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """The verdicts that stand, and the claims without one under what they lack: {missing: [claims with their numbers]}."""
    stand, lacking = list[dict[str, Any]](), dict[str, list[dict[str, Any]]]()
    for verdict in verdicts:
        numbers, _, missing = verdict["numbers"].partition("; no verdict because ")
        if missing:
            lacking.setdefault(missing, []).append(verdict | {"numbers": numbers})
        else:
            stand.append(verdict)
    return stand, lacking


def outcome_over(where: list[bool]) -> str:
    """HOLDS everywhere, WITHIN a range, or nowhere."""
    return HOLDS if all(where) else WITHIN if any(where) else FAILS


def range_of(values: list[float], where: list[bool], unit: str = "") -> str:
    """The values at which something is true, as 'a to b', or 'nowhere'."""
    chosen = [value for value, true in zip(values, where, strict=True) if true]
    return f"{min(chosen):.3g} to {max(chosen):.3g}{unit}" if chosen else "nowhere"


def no_worse(gap: float, spread: float) -> str:
    """Whether a loss is no worse than another by `gap`, given the spread over seeds of either; diverged runs are worse."""
    return FAILS if math.isnan(gap) or gap > max(0.0, spread) else HOLDS
