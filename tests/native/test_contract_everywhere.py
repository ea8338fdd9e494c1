"""The operator's contract tests, unchanged, in every instruction set of this machine but the best, which they run in anyway."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lln.ops.native.call import available
from lln.ops.native.library import library

TESTS = Path(__file__).parents[1]
OTHERS = [] if available() else list(library().usable)[:-1]  # from the least to the best


@pytest.mark.parametrize("isa", OTHERS)
def test_the_contract_holds_in_the_other_instruction_sets(isa: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-k",
        "native and contract",
        str(TESTS / "ops"),
    ]
    # Fewer examples than in the best instruction set, unless the caller says how many.
    environment = {"LLN_CONTRACT_EXAMPLES": "120", **os.environ, "LLN_NATIVE_ISA": isa}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=TESTS.parent)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
