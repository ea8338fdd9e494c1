"""LLN attention over a sequence that is cut anywhere: outputs and gradients of one process, by the rule of the contract."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.ops import test_lln_contract as contract
from tests.ops.cases import Case, Inputs, build, cases
from tests.parallel.pool import Pool
from tests.parallel.remote import drawn_cuts, over

sizes = st.integers(2, 4)


def check(pool: Pool, case: Case, size: int, backend: str = "auto") -> None:
    inputs = build(case)
    key_cuts = drawn_cuts(case.keys, size, case.seed)
    query_cuts = key_cuts if case.causal or case.packed else drawn_cuts(case.queries, size, case.seed + 1)

    def run(x: Inputs) -> Tensor:
        return over(pool, "attention", x.operands, backend, query_cuts, key_cuts)

    contract.check_inputs_by(run, inputs)


@settings(max_examples=60)
@given(case=cases(), size=sizes)
def test_outputs_and_gradients_are_those_of_one_process(pool: Pool, case: Case, size: int) -> None:
    check(pool, case, size)


@settings(max_examples=25)
@given(case=cases(), size=sizes)
def test_they_are_in_plain_torch(pool: Pool, case: Case, size: int) -> None:
    check(pool, case, size, "chunked")


@pytest.mark.slow
@pytest.mark.timeout(20_000)
@pytest.mark.parametrize("backend", ["native", "chunked"])
@settings(max_examples=1000, derandomize=False)
@given(case=cases(), size=sizes)
def test_they_are_in_a_large_sweep(pool: Pool, case: Case, size: int, backend: str) -> None:
    assume(backend != "native" or case.dtype != torch.float64)
    check(pool, case, size, backend)
