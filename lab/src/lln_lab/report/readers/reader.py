"""What a reader of results is, and the groups of the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lln_lab.report.blocks import Block

EXPERIMENTS, FIGURES, SPEED, OTHER = "Experiments", "Figures of the paper", "Speed and memory", "Other results"
GROUPS = (EXPERIMENTS, FIGURES, SPEED, OTHER)


@dataclass(frozen=True)
class Reader:
    """One form of result. A part is named after what it reads, for the notice when it cannot."""

    group: str
    knows: Callable[[dict[str, Any]], bool]
    title: Callable[[dict[str, Any]], str | None]
    parts: Sequence[Callable[[dict[str, Any]], list[Block]]]
    opening: Sequence[Callable[[dict[str, Any]], list[Block]]] = ()  # the order of parts below a headline

    def parts_of(self, data: dict[str, Any]) -> Sequence[Callable[[dict[str, Any]], list[Block]]]:
        return self.opening if data.get("headline") and self.opening else self.parts
