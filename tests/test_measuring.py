"""The instruments of the benchmarks measure what they say."""

import sys
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch

from lln.measuring.memory import peak_extra_bytes
from lln.measuring.timing import Timing, interleaved


def allocate(megabytes: int) -> Callable[[], object]:
    def call() -> None:
        half = torch.ones(megabytes * 125_000)  # float32: half the megabytes
        _freed = half + 1
        del _freed
        _again = half + 1

    return call


def crash() -> Callable[[], object]:
    return partial(sys.exit, 3)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
@pytest.mark.parametrize("megabytes", [10, 100])
def test_peak_memory_is_what_is_held_at_once(megabytes: int) -> None:
    assert peak_extra_bytes(allocate, megabytes) == pytest.approx(megabytes * 1e6, rel=0.1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
def test_a_process_that_dies_is_reported() -> None:
    with pytest.raises(MemoryError, match="ended with exit code"):
        peak_extra_bytes(crash)


def test_runs_are_interleaved_and_slow_ones_run_once() -> None:
    calls: list[str] = []
    functions = {
        "quick": lambda: calls.append("quick"),
        "slow": lambda: (calls.append("slow"), time.sleep(0.6)),
    }
    timings = interleaved(functions, repeats=2, warmup=1, slow=0.5)
    assert calls == ["quick", "slow", "quick", "quick"]
    assert timings["quick"].runs == 2 and timings["slow"].runs == 1
    assert timings["slow"].median > timings["quick"].median


def test_timings_are_medians_with_their_spread() -> None:
    timing = Timing.of([5.0, 1.0, 2.0, 3.0, 4.0], [3.0, 2.0])
    assert (timing.median, timing.fastest, timing.quartiles) == (3.0, 1.0, (2.0, 4.0))
