"""The members that qualify, timed on the very shape that was asked for.

Each is measured in a process of its own, within a limit of memory and time, in rounds that go over all of them. A ratio is the
median over rounds of a member's time over softmax's.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lln import zoo
from lln_lab.bench.zoo import run_cell
from lln_lab.bench.zoo_cell import Cell


@dataclass(frozen=True)
class Asked:
    """What the attention is for."""

    length: int
    width: int
    heads: int
    causal: bool = False
    serving: bool = False  # forward alone; otherwise forward and backward
    threads: int = 1
    rounds: int = 2
    clock: str = "wall"
    memory_limit: float = 8.0  # gigabytes a member may use
    time_limit: float = 60.0  # seconds a member may take in a round

    def cell(self, member: str, round_: int) -> Cell:
        return Cell(
            member, "asked", self.width, self.heads, 4 * self.width, 1, self.length, round_, threads=self.threads,
            clock=self.clock, memory_limit=self.memory_limit, causal=self.causal, attention_only=True,
        )  # fmt: skip

    @property
    def measure(self) -> str:
        return "attention_forward_seconds" if self.serving else "attention_train_seconds"


@dataclass(frozen=True)
class Timing:
    """A member on the shape; `status` is "ok", "timeout" or "OOM"."""

    member: str
    status: str
    seconds: float = 0.0
    peak_bytes: float = 0.0
    ratio: float | None = None  # of its time to softmax's, or None where softmax could not be measured


def disqualified(member: str, causal: bool) -> str | None:
    """Why a member is not a candidate, or None."""
    card = zoo.card(member)
    if causal and not card.causal:
        return "it has no causal form"
    if not causal and not card.bidirectional:
        return "it has only a causal form"
    return None


def measure(asked: Asked, members: list[str], on_progress: Callable[[str], None] = lambda what: None) -> list[Timing]:
    order = ["softmax", *(name for name in members if name != "softmax")]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in order}
    for round_ in range(asked.rounds):
        for name in order:
            on_progress(name)
            failed = found[name] and found[name][-1]["status"] != "ok"
            found[name].append(found[name][-1] if failed else run_cell(asked.cell(name, round_), asked.time_limit))
    return [_timing(name, found[name], found["softmax"], asked.measure) for name in order]


def _timing(name: str, rounds: list[dict[str, Any]], softmax: list[dict[str, Any]], measure: str) -> Timing:
    if any(one["status"] != "ok" for one in rounds):
        return Timing(name, next(one["status"] for one in rounds if one["status"] != "ok"))
    pairs = [(a[measure], b[measure]) for a, b in zip(rounds, softmax, strict=True) if b["status"] == "ok"]
    return Timing(
        name,
        "ok",
        statistics.median(one[measure] for one in rounds),
        statistics.median(one["peak_bytes"] for one in rounds),
        statistics.median(own / other for own, other in pairs) if pairs else None,
    )
