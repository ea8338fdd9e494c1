"""Near-far attention over a sequence that is cut anywhere: outputs and gradients of one process, by the contract's rule."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import test_near_far_contract as contract
from tests.ops.cases import Case, build, cases
from tests.parallel.pool import Pool
from tests.parallel.remote import drawn_cuts, over

sizes = st.integers(2, 4)
square_cases = cases().map(contract.square)


def check(pool: Pool, case: Case, reach: contract.Reach, size: int) -> None:
    x = contract.operands(build(dataclasses.replace(case, sigma=min(case.sigma, 3.0))), reach)
    cuts = drawn_cuts(case.keys, size, case.seed)
    contract.check_by(lambda y: over(pool, "near_far", y, "auto", cuts, cuts), x)


@settings(max_examples=40)
@given(case=square_cases, reach=contract.reaches, size=sizes)
def test_outputs_and_gradients_are_those_of_one_process(
    pool: Pool, case: Case, reach: contract.Reach, size: int
) -> None:
    check(pool, case, reach, size)


@pytest.mark.slow
@pytest.mark.timeout(20_000)
@settings(max_examples=700, derandomize=False)
@given(case=square_cases, reach=contract.reaches, size=sizes)
def test_they_are_in_a_large_sweep(pool: Pool, case: Case, reach: contract.Reach, size: int) -> None:
    check(pool, case, reach, size)
