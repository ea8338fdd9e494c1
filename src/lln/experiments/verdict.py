"""What became of a claim, in words and numbers."""

from dataclasses import asdict, dataclass
from typing import Any

HOLDS = "holds"
WITHIN = "holds within a range"
FAILS = "does not hold"


@dataclass(frozen=True)
class Verdict:
    claim: str  # as the paper makes it
    outcome: str  # HOLDS, WITHIN or FAILS
    numbers: str  # what was measured

    def __post_init__(self) -> None:
        if self.outcome not in (HOLDS, WITHIN, FAILS):
            raise ValueError(f"an outcome is {HOLDS!r}, {WITHIN!r} or {FAILS!r}, not {self.outcome!r}")

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def outcome_over(where: list[bool]) -> str:
    """HOLDS everywhere, WITHIN a range, or nowhere."""
    return HOLDS if all(where) else WITHIN if any(where) else FAILS


def range_of(values: list[float], where: list[bool], unit: str = "") -> str:
    """The values at which something is true, as 'a to b', or 'nowhere'."""
    chosen = [value for value, true in zip(values, where, strict=True) if true]
    return f"{min(chosen):.3g} to {max(chosen):.3g}{unit}" if chosen else "nowhere"
