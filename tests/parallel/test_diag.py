"""Blocks and LLN+Diag over a sequence that is cut anywhere: outputs and gradients of one process, by the contract's rule."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import test_diag_contract as contract
from tests.ops.cases import Case, build, cases
from tests.parallel.pool import Pool
from tests.parallel.remote import drawn_cuts, over

sizes = st.integers(2, 4)
square_cases = cases().map(contract.square)


def check(pool: Pool, operation: str, case: Case, mixture: contract.Mixture, size: int, backend: str = "auto") -> None:
    x = contract.operands(operation, build(dataclasses.replace(case, sigma=min(case.sigma, 3.0))), mixture)
    cuts = drawn_cuts(case.keys, size, case.seed)
    if case.seed % 3 == 0:  # on block boundaries, where nothing but LLN's states needs to travel
        cuts = [min(-(-c // mixture.block_size) * mixture.block_size, case.keys) for c in cuts]
    contract.check_by(operation, lambda y: over(pool, operation, y, backend, cuts, cuts), x)


@pytest.mark.parametrize("operation", ["blocks", "diag"])
@settings(max_examples=40)
@given(case=square_cases, mixture=contract.mixtures, size=sizes)
def test_outputs_and_gradients_are_those_of_one_process(
    pool: Pool, operation: str, case: Case, mixture: contract.Mixture, size: int
) -> None:
    check(pool, operation, case, mixture, size)


@pytest.mark.slow
@pytest.mark.timeout(20_000)
@pytest.mark.parametrize("backend", ["native", "chunked"])
@pytest.mark.parametrize("operation", ["blocks", "diag"])
@settings(max_examples=700, derandomize=False)
@given(case=square_cases, mixture=contract.mixtures, size=sizes)
def test_they_are_in_a_large_sweep(
    pool: Pool, operation: str, case: Case, mixture: contract.Mixture, size: int, backend: str
) -> None:
    check(pool, operation, case, mixture, size, backend)
