"""The contract tests of every backend over the Triton kernels, on the CPU, under Triton's interpreter.

The interpreter is chosen before triton is imported, so these tests run in processes of their own. They say nothing of races
between warps and nothing of speed, and bfloat16 products run in float32 there: `lab/tests/gpu` looks at what is compiled.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: pip install 'lln-attention[gpu]'"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is that process"),
]

# What is quick enough for every run; all tests, and more cases, are for `make sweep`.
QUICK = {
    "attention": "agree_with_the_oracle or edge_of_float16 or (huge and 64) or (right_padding and 37) "
    "or (packed and causal) or without_keys",
    "blocks": "agree_with_the_oracle or (future and v-nan and 16) or (anything and holes)",
    "diag": "agree_with_the_oracle or (future and v-nan and 16) or float32",
    "near_far": "agree_with_the_oracle",
}
DRAWN = {"attention": 110, "blocks": 70, "diag": 80, "near_far": 40}  # 300 in all


def run(selection: str, examples: int, *files: str, seconds: int = 600) -> str:
    """seconds: that each test inside may take."""
    command = [
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.gpu.interpreted", f"--timeout={seconds}",
        "-k", selection, *files,
    ]  # fmt: skip
    environment = os.environ | {"TRITON_INTERPRET": "1", "LLN_EXAMPLES": str(examples)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    return done.stdout


@pytest.mark.parametrize("operation", DRAWN)
def test_the_contract_holds_under_the_interpreter(operation: str) -> None:
    run(f"{operation}-triton and ({QUICK[operation]})", DRAWN[operation], "tests/ops")


def test_launches_write_all_they_return_and_wait_for_nobody() -> None:
    run("launches", 5, "tests/gpu/test_launches.py")


def test_the_kernels_are_operators_as_torch_wants_them() -> None:
    run("graphs", 5, "tests/gpu/test_graphs.py")


@pytest.mark.slow
@pytest.mark.timeout(20_000)
@pytest.mark.parametrize("operation", DRAWN)
def test_the_whole_contract_holds_under_the_interpreter(operation: str) -> None:
    """2,000 drawn cases, and every other test of the contract, from scales of 1e-3 to 64."""
    run(f"{operation}-triton", 2000 * DRAWN[operation] // 300, "tests/ops", seconds=20_000)
