"""What became of a claim, in words and numbers."""

import math
from dataclasses import asdict, dataclass
from typing import Any

HOLDS = "holds"
WITHIN = "holds within a range"
FAILS = "does not hold"
OPEN = "inconclusive"  # too few seeds to tell
OUTCOMES = (HOLDS, WITHIN, FAILS, OPEN)


@dataclass(frozen=True)
class Verdict:
    claim: str  # as the paper makes it
    outcome: str  # HOLDS, WITHIN, FAILS or OPEN
    numbers: str  # what was measured

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"an outcome is one of {', '.join(map(repr, OUTCOMES))}, not {self.outcome!r}")

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def outcome_over(where: list[bool]) -> str:
    """HOLDS everywhere, WITHIN a range, or nowhere."""
    return HOLDS if all(where) else WITHIN if any(where) else FAILS


def range_of(values: list[float], where: list[bool], unit: str = "") -> str:
    """The values at which something is true, as 'a to b', or 'nowhere'."""
    chosen = [value for value, true in zip(values, where, strict=True) if true]
    return f"{min(chosen):.3g} to {max(chosen):.3g}{unit}" if chosen else "nowhere"


def no_worse(gap: float, spread: float, seeds: int) -> str:
    """Whether a loss is no worse than another by `gap`, given the spread over seeds of either; diverged runs are worse."""
    if math.isnan(gap):
        return FAILS
    if gap <= 0:
        return HOLDS if seeds > 1 else OPEN
    if seeds == 1:
        return OPEN
    return HOLDS if gap <= spread else FAILS
