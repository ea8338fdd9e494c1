"""20,000 drawn calls of the operators against an oracle that shares nothing with the library's own; 1,000 in every run.

Each test is a range of seeds, and each seed one call, the same everywhere; a failure names it.
"""

import pytest

from tests.independent.checking import check

IN_EVERY_RUN, IN_A_SWEEP = 1_000, 20_000
TOGETHER = 25


def in_batches(start: int, stop: int, size: int) -> list[range]:
    return [range(first, first + size) for first in range(start, stop, size)]


def named(seeds: range) -> str:
    return f"{seeds.start}-{seeds.stop - 1}"


def check_all(seeds: range) -> None:
    failures = []
    for seed in seeds:
        try:
            check(seed)
        except Exception as error:
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(seeds)} calls", failures)


@pytest.mark.parametrize("seeds", in_batches(0, IN_EVERY_RUN, TOGETHER), ids=named)
def test_drawn_calls_agree_with_the_independent_oracle(seeds: range) -> None:
    check_all(seeds)


def test_exponents_of_rising_keys_are_as_exact_as_plain_ones() -> None:
    """A reference 64 below the running maximum rounded them too coarsely in this one of 20,000 calls."""
    check(16_689)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", in_batches(IN_EVERY_RUN, IN_A_SWEEP, 10 * TOGETHER), ids=named)
def test_drawn_calls_agree_with_the_independent_oracle_in_a_large_sweep(seeds: range) -> None:
    check_all(seeds)
