"""Two processes give the losses of one, and a sharded model those of a whole one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[4]


def run(folder: Path, launcher: list[str], module: str, *arguments: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, *launcher, "-m", module, str(folder), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def two_processes() -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def losses(folder: Path) -> Any:
    found = json.loads((folder / "mlm_lln_diag_seed0" / "result.json").read_text())
    return [x["loss"] for x in found["history"] if "loss" in x], found["evaluation"]["loss"]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_two_processes_give_the_losses_of_one(tmp_path: Path) -> None:
    module = "lab.tests.experiments.training.tiny_run"
    run(tmp_path / "one", [], module, "dropout", "0")
    run(tmp_path / "two", two_processes(), module, "dropout", "0")
    (one, evaluated), (two, evaluated_too) = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == 4 and two == pytest.approx(one, rel=2e-5)
    assert evaluated_too == pytest.approx(evaluated, rel=2e-5)
    assert [(tmp_path / "two" / f"group-{rank}").read_text() for rank in (0, 1)] == ["left", "left"]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_a_sharded_model_trains_like_a_whole_one(tmp_path: Path) -> None:
    run(tmp_path, two_processes(), "lab.tests.experiments.training.sharded")
    found = json.loads((tmp_path / "sharded.json").read_text())
    assert found["sharded"] == pytest.approx(found["whole"], rel=1e-5) and found["whole"][0] != found["whole"][-1]
    assert found["local"] < 0.6 * found["all"], "no process should hold more than its share of the weights"


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_a_batch_is_normalised_as_one_over_two_processes(tmp_path: Path) -> None:
    run(tmp_path, two_processes(), "lab.tests.experiments.training.shared_norm")
    found = json.loads((tmp_path / "norm.json").read_text())
    assert set(found["errors"]) == {"x", "weight", "mean", "var"} and found["size"] > 0.01
    assert max(found["errors"].values()) < 1e-6, found
