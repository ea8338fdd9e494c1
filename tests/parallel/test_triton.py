"""The Triton kernels under the interpreter, over two processes that were started for it: outputs and gradients of the whole."""

import dataclasses
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from hypothesis import Phase, given, settings

from tests.gpu.interpreted import build_small
from tests.ops import test_diag_contract as diag_contract
from tests.ops import test_lln_contract as contract
from tests.ops.cases import Case, Inputs, cases
from tests.parallel.pool import Pool
from tests.parallel.remote import drawn_cuts, over

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
one_by_one = [Phase.explicit, Phase.generate]  # the interpreter is too slow to make a failing case smaller
many = settings(max_examples=100, derandomize=False, phases=one_by_one)


@pytest.fixture(scope="module")
def interpreting() -> Iterator[Pool]:
    """Whether kernels are interpreted is settled when triton is imported: not in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        processes = Pool(2)
    yield processes
    processes.close()


def built(case: Case) -> Inputs:
    return build_small(dataclasses.replace(case, dtype=torch.float32 if case.dtype == torch.float64 else case.dtype))


def check(pool: Pool, case: Case) -> None:
    inputs = built(case)
    queries, keys = inputs.q.shape[2], inputs.k.shape[2]
    key_cuts = drawn_cuts(keys, 2, case.seed)
    query_cuts = key_cuts if case.causal or case.packed else drawn_cuts(queries, 2, case.seed + 1)
    contract.check_inputs_by(lambda x: over(pool, "attention", x.operands, "triton", query_cuts, key_cuts), inputs)


def check_diag(pool: Pool, case: Case, mixture: diag_contract.Mixture) -> None:
    inputs = built(dataclasses.replace(diag_contract.square(case), sigma=min(case.sigma, 3.0)))
    x, cuts = diag_contract.operands("diag", inputs, mixture), drawn_cuts(inputs.k.shape[2], 2, case.seed)
    diag_contract.check_by("diag", lambda y: over(pool, "diag", y, "triton", cuts, cuts), x)


@settings(max_examples=4, phases=one_by_one)
@given(case=cases())
def test_lln_attention_is_that_of_one_process(interpreting: Pool, case: Case) -> None:
    check(interpreting, case)


@settings(max_examples=2, phases=one_by_one)
@given(case=cases(), mixture=diag_contract.mixtures)
def test_lln_diag_is_that_of_one_process(interpreting: Pool, case: Case, mixture: diag_contract.Mixture) -> None:
    check_diag(interpreting, case, mixture)


@pytest.mark.slow
@pytest.mark.timeout(20_000)
@many
@given(case=cases())
def test_lln_attention_is_in_a_sweep(interpreting: Pool, case: Case) -> None:
    check(interpreting, case)


@pytest.mark.slow
@pytest.mark.timeout(20_000)
@many
@given(case=cases(), mixture=diag_contract.mixtures)
def test_lln_diag_is_in_a_sweep(interpreting: Pool, case: Case, mixture: diag_contract.Mixture) -> None:
    check_diag(interpreting, case, mixture)
