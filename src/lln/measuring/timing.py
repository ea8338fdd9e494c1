"""Timing side by side: machines are shared and noisy, so results are ratios from interleaved runs.

On a quiet machine, take ratios of medians. On a busy one, most of the time is spent waiting for a core; the least CPU time of
many runs is closest to the cost of the call itself.
"""

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
    least_cpu: float  # of all threads together

    @staticmethod
    def of(seconds: list[float], cpu_seconds: list[float]) -> "Timing":
        ordered = sorted(seconds)
        last = len(ordered) - 1
        quartiles = (ordered[last // 4], ordered[last - last // 4])
        return Timing(statistics.median(ordered), ordered[0], quartiles, len(ordered), min(cpu_seconds))


def interleaved(
    functions: Mapping[str, Callable[[], Any]], *, repeats: int = 7, warmup: int = 1, slow: float = 10.0
) -> dict[str, Timing]:
    """Run every function in turn, `repeats` times after `warmup` rounds; one that takes over `slow` seconds runs once."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in functions}
    done: set[str] = set()
    for round_ in range(warmup + repeats):
        for name, function in functions.items():
            if name in done:
                continue
            start, cpu_start = time.perf_counter(), time.process_time()
            function()
            taken, cpu_taken = time.perf_counter() - start, time.process_time() - cpu_start
            if round_ >= warmup or taken > slow:
                seconds[name].append(taken)
                cpu_seconds[name].append(cpu_taken)
            if taken > slow:
                done.add(name)
    return {name: Timing.of(taken, cpu_seconds[name]) for name, taken in seconds.items()}
