"""The examples run, and the training script gives one result on one process and on two."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["encoder", "vit", "causal"])
def test_the_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()
    printed = capsys.readouterr().out
    assert printed and "False" not in printed


def _train(out: Path, processes: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    launcher = (
        [] if processes == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    )
    script = [
        str(EXAMPLES / "train_with_trainer.py"),
        "--steps",
        "3",
        "--batch",
        str(8 // processes),
        "--out",
        str(out),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, *launcher, *script], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    losses = [float(x) for x in (out / "losses.txt").read_text().split()]
    return losses, load_file(out / "model.safetensors")


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    one_losses, one = _train(tmp_path / "one", 1)
    two_losses, two = _train(tmp_path / "two", 2)
    assert one_losses == pytest.approx(two_losses, rel=1e-3)
    assert one_losses[-1] < one_losses[0]
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-3, atol=1e-4)
