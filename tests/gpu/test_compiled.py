"""What the kernels compile to for GPUs that are not here: no spill, no more shared memory than there is, tensor cores in use.

Compiled in processes of their own, without the interpreter. That a kernel compiles is not enough: it may spill, or be empty.
"""

import functools
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.compiling import SHARED_MEMORY

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: pip install 'lln-attention[gpu]'"),
    pytest.mark.timeout(1800),
]

MERGERS = {"merge_states", "prefix_states", "sum_state_gradients", "suffix_gradients", "sum_scales"}
PRODUCTS = {
    "key_states", "outputs", "query_gradients", "key_gradients", "causal_outputs", "causal_query_gradients",
    "causal_key_gradients", "block_outputs", "block_query_gradients", "block_key_gradients",
}  # fmt: skip

# The sums over keys and their gradient do not fit into the registers there, with a tile of rows beside them.
SPILLING = {(128, "causal_query_gradients"), (128, "causal_key_gradients")}


@functools.cache
def sheet(arch: int, size: int) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.gpu.sheet", str(arch), str(size)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("arch", [80, 90])
def test_every_kernel_fits_the_machine(arch: int, size: int) -> None:
    found = sheet(arch, size)
    assert {x["kernel"] for x in found} == MERGERS | PRODUCTS
    for x in found:
        instructions = x["instructions"]
        assert x["shared"] <= SHARED_MEMORY[arch], x
        assert instructions.get("LDG", 0) + instructions.get("LDGSTS", 0) > 0 and instructions.get("STG", 0) > 0, x
        if x["kernel"] in PRODUCTS:
            assert sum(instructions.get(i, 0) for i in ("HMMA", "HGMMA")) > 0, x
            assert instructions.get("MUFU", 0) > 0, x
        spills = x["stack"] + instructions.get("STL", 0) + instructions.get("LDL", 0)
        assert (spills > 0) == ((size, x["kernel"]) in SPILLING), x
