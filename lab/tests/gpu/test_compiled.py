"""What the kernels compile to for GPUs that are not here: no spill, no more shared memory than there is, tensor cores in use.

Compiled in a process of its own, without the interpreter. That a kernel compiles is not enough: it may spill, or be empty.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SHEET = Path(__file__).parents[3] / "docs" / "results" / "gpu_sheet.json"

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: pip install 'lln-attention[gpu]'"),
    pytest.mark.timeout(3600),
]

OTHERS = {
    "merge_states", "prefix_states", "sum_state_gradients", "suffix_gradients", "sum_scales", "step",
    "far_moments", "asked_of_keys", "sum_parameters",
}  # fmt: skip
MATCHED = (64, 128)
MATCHING = {"spread", "key_scores", "small_search", "large_search"}  # at these head sizes, in bfloat16
PRODUCTS = {
    "key_states", "outputs", "query_gradients", "key_gradients", "causal_outputs", "causal_query_gradients",
    "causal_key_gradients", "block_outputs", "mixed_outputs", "block_query_gradients", "block_key_gradients", "block_moments",
    "near_far_outputs", "near_far_query_gradients", "near_far_key_gradients", "first_token_gradients", "block_asks",
}  # fmt: skip


def sheet(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The kernels of `lln gpu sheet`."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [
        sys.executable, "-c", "from lln_lab.cli.gpu import app; app()", "sheet", "--no-peers", "--out", str(folder),
        "--cache", str(folder / "compiled"), *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads((folder / "gpu_sheet.json").read_text())["kernels"]
    return found


def check(found: list[dict[str, Any]], combinations: int) -> None:
    matched = {(x["target"], x["size"]) for x in found if x["size"] in MATCHED and x["dtype"] == "bfloat16"}
    assert {x["kernel"] for x in found} == OTHERS | PRODUCTS | (MATCHING if matched else set())
    of_matching = len(matched) * len(MATCHING)
    assert len(found) == combinations * len(OTHERS | PRODUCTS) + of_matching
    for x in found:
        assert x.get("fits"), x  # nothing spilled, shared memory within the limit, something read and something written
        if x["kernel"] in PRODUCTS and x["dtype"] == "bfloat16":
            assert x["tensor_cores"] > 0 and x["exponentials"] > 0, x


def test_every_kernel_fits_the_machine(tmp_path: Path) -> None:
    """What the committed sheet says of kernels whose source, sizes and options are the same is not compiled again."""
    chosen = ("--target", "sm_80", "--target", "sm_90", "--size", "64", "--size", "128", "--dtype", "bfloat16")
    check(sheet(tmp_path, *chosen, "--known", str(SHEET)), 4)


def test_some_of_the_sheet_is_what_the_assembler_says_here(tmp_path: Path) -> None:
    """One target, compiled anew: two kernels."""
    known = tmp_path / "known.json"
    rows = json.loads(SHEET.read_text())["kernels"]
    again = {"key_states", "block_outputs"}
    known.write_text(json.dumps({"kernels": [row for row in rows if row["kernel"] not in again]}))
    found = sheet(tmp_path, "--target", "sm_90", "--size", "64", "--dtype", "bfloat16", "--known", str(known))
    before = {(row["key"], row["dtype"], row["size"]): row for row in rows}
    for row in found:
        assert row == before.get((row["key"], row["dtype"], row["size"]), row)
    check(found, 1)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["64", "128", "256", "32"])
def test_every_kernel_fits_every_machine(size: str, tmp_path: Path) -> None:
    check(sheet(tmp_path, "--size", size, "--dtype", "bfloat16"), 4)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["64", "128", "256", "32"])
def test_every_kernel_runs_on_every_machine_in_float32(size: str, tmp_path: Path) -> None:
    """Some spill there, as the sheet says; none asks for more shared memory than there is."""
    found = sheet(tmp_path, "--size", size, "--dtype", "float32")
    assert {x["kernel"] for x in found} == OTHERS | PRODUCTS
    for x in found:
        assert not x.get("failed") and 0 <= x["shared"] <= x["shared_limit"], x
