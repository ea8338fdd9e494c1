"""Timing side by side: machines are shared and noisy, so what counts is a ratio of medians from interleaved runs."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds a call takes, over several runs."""

    median: float
    fastest: float
    quartiles: tuple[float, float]
    runs: int

    @staticmethod
    def of(seconds: list[float]) -> "Timing":
        ordered = sorted(seconds)
        last = len(ordered) - 1
        quartiles = (ordered[last // 4], ordered[last - last // 4])
        return Timing(statistics.median(ordered), ordered[0], quartiles, len(ordered))


def interleaved(
    functions: Mapping[str, Callable[[], Any]], *, repeats: int = 7, warmup: int = 1, slow: float = 10.0
) -> dict[str, Timing]:
    """Run every function in turn, `repeats` times after `warmup` rounds; one that takes over `slow` seconds runs once."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    done: set[str] = set()
    for round_ in range(warmup + repeats):
        for name, function in functions.items():
            if name in done:
                continue
            start = time.perf_counter()
            function()
            taken = time.perf_counter() - start
            if round_ >= warmup or taken > slow:
                seconds[name].append(taken)
            if taken > slow:
                done.add(name)
    return {name: Timing.of(taken) for name, taken in seconds.items()}
