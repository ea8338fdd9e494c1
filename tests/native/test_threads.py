"""The pool of threads: forks, several callers at once, torch's own threads."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.native.helpers import random_call


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_with_threads_of_its_own(threads: None) -> None:
    torch.set_num_threads(2)
    call = random_call(3000, causal=False)
    expected = call.forward()[0]  # the pool exists before the fork
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs must not outlive the test
        # Only our kernel: torch's OpenMP does not survive a fork.
        same = call.forward()[0].numpy().tobytes() == expected.numpy().tobytes()
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert torch.equal(call.forward()[0], expected)  # and the parent's pool is unharmed


def test_callers_in_several_threads_do_not_disturb_each_other(threads: None) -> None:
    torch.set_num_threads(2)
    calls = [random_call(1300, causal, seed=seed) for seed in range(3) for causal in (False, True)]
    expected = [call.forward() for call in calls]
    with ThreadPoolExecutor(4) as callers:
        for _ in range(3):
            found = list(callers.map(lambda call: call.forward(), calls))
            for a, b in zip(expected, found, strict=True):
                assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_growing_and_shrinking_the_number_of_threads(threads: None) -> None:
    call = random_call(2000, causal=False)
    expected = call.forward()[0]
    for number in (1, 4, 2, 6, 1, 3, 6, 2) * 5:
        torch.set_num_threads(number)
        assert torch.equal(call.forward()[0], expected)
        torch.ones(300_000).sum()  # torch's own threads in between


def test_torchs_threads_and_our_own_give_the_same_bits() -> None:
    """A process for each, since the choice is made when the library is opened."""
    script = (
        "import torch, lln; from lln.ops.native.team import torch_team; torch.set_num_threads(2);"
        "torch.manual_seed(0); x = torch.randn(3, 1, 3, 1000, 32);"
        "print(torch_team() is None, lln.lln_attention(*x, 1.5, 1.5, backend='native').double().sum().item().hex())"
    )
    found = {
        kind: subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "LLN_NATIVE_THREADS": kind},
            capture_output=True, text=True, check=True,
        ).stdout.split()
        for kind in ("own", "torch")
    }  # fmt: skip
    assert found["own"][0] == "True" and found["own"][1] == found["torch"][1]
    if sys.platform == "linux" and "openmp" in torch.__config__.parallel_info().lower():
        assert found["torch"][0] == "False", "torch's OpenMP team was not found"
