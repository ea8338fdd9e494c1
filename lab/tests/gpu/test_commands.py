"""What the GPU commands say on a machine without a GPU, and what the sheet counts."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lln_lab.cli.bench import app as bench
from lln_lab.cli.gpu import app as gpu

runner = CliRunner()
with_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_benchmark_says_so(tmp_path: Path) -> None:
    result = runner.invoke(bench, ["gpu", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "there is no GPU here" in result.output and "lln gpu sheet" in result.output
    assert not list(tmp_path.iterdir())


@with_triton
def test_a_target_that_is_not_known_is_refused_with_those_that_are(tmp_path: Path) -> None:
    result = runner.invoke(gpu, ["sheet", "--target", "sm_10", "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and "sm_10" in result.output and "gfx942" in result.output


@with_triton
@pytest.mark.parametrize("way, most, launched", [("forward", 1.05, 3), ("backward", 1.1, 4)])
@pytest.mark.parametrize("head", [64, 128])
def test_hardly_more_is_read_and_written_than_must_be(way: str, most: float, launched: int, head: int) -> None:
    """The goals: bytes of the bidirectional pass against the least at N = 65,536."""
    from lln.ops.gpu import tiles
    from lln_lab.gpu import work
    from lln_lab.gpu.launches import Size, launches

    size = Size(head, torch.bfloat16, length=65_536)
    with tiles.compiled_for("sm_90"):
        found = launches(size)
    name = f"LLN, bidirectional {way}"
    moved = sum(map(work.bytes_moved, found[name]))
    assert work.least_bytes(name, size) < moved <= most * work.least_bytes(name, size)
    assert len(found[name]) == launched


@with_triton
def test_a_kernel_that_dtypes_share_is_listed_under_each(tmp_path: Path) -> None:
    chosen = [
        "--target",
        "sm_90",
        "--size",
        "64",
        "--no-peers",
        "--no-compile",
        "--known",
        str(DOCS / "results/gpu_sheet.json"),
    ]
    result = runner.invoke(gpu, ["sheet", *chosen, "--out", str(tmp_path), "--cache", str(tmp_path / "cache")])
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "gpu_sheet.json").read_text())["kernels"]
    names = {of: {row["kernel"] for row in rows if row["dtype"] == of} for of in ("bfloat16", "float32")}
    matching = names["bfloat16"] - names["float32"]
    assert (len(rows), len(names["bfloat16"]), len(matching)) == (56, 30, 4), "matching is laid out in bfloat16 only"


@with_triton
def test_what_is_not_known_may_be_left_out(tmp_path: Path) -> None:
    chosen = ["--target", "sm_90", "--size", "64", "--dtype", "bfloat16", "--no-peers", "--no-compile"]
    folders = ["--out", str(tmp_path), "--cache", str(tmp_path / "cache")]
    result = runner.invoke(gpu, ["sheet", *chosen, *folders])
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "gpu_sheet.json").read_text())
    assert told["kernels"] == [] and len(told["operations"]) > 10


def test_the_page_is_made_from_the_result() -> None:
    from lln_lab.pages.gpu_sheet import page

    text = (DOCS / "gpu-sheet.md").read_text()
    assert text == page(DOCS)
    assert text.splitlines()[2].startswith("Predicted, not measured")
