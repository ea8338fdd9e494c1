"""Near-far attention over a sequence that is cut anywhere: outputs and gradients of one process, by the contract's rule."""

import dataclasses

import pytest
import torch
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


def test_a_process_whose_packed_sequences_have_no_token(pool: Pool) -> None:
    case = Case(
        batch=1, key_heads=1, groups=2, queries=13, keys=13, dim=8, value_dim=64, dtype=torch.float32, sigma=0.1,
        mask="none", layout="contiguous", causal=False, packed=True, biased=True, seed=2,
    )  # fmt: skip
    check(pool, case, contract.Reach(1, 0, 0, 0.3), 4)


@pytest.mark.slow
@pytest.mark.timeout(20_000)
@settings(max_examples=700, derandomize=False)
@given(case=square_cases, reach=contract.reaches, size=sizes)
def test_they_are_in_a_large_sweep(pool: Pool, case: Case, reach: contract.Reach, size: int) -> None:
    check(pool, case, reach, size)
