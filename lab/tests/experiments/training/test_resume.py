"""A run that is killed and started again ends with the same numbers, bit for bit, as one that is left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lab.tests.experiments.training import tiny_run
from lln_lab.experiments.training import Budget, Run, checkpoints, train
from lln_lab.experiments.training.lock import held

NAME = "mlm_lln_diag_seed0"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    launch(folder).wait(timeout=300)
    return result(folder)


def launch(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", "lab.tests.experiments.training.tiny_run", str(folder), *arguments]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / NAME / "result.json").read_text())
    for timing in ("provenance", "seconds_per_step", "cpu_seconds_per_step", "evaluation_cpu_seconds"):
        found.pop(timing)
    return found


def test_killed_between_checkpoints_ends_with_the_same_bits(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    process = launch(tmp_path)
    wait_for(tmp_path / NAME / "checkpoint-3", process)
    process.kill()
    assert process.wait() == -signal.SIGKILL and not (tmp_path / NAME / "result.json").exists()
    assert launch(tmp_path).wait(timeout=300) == 0
    assert result(tmp_path) == undisturbed


@pytest.mark.parametrize("number", [3, 9])
def test_killed_inside_a_save_ends_with_the_same_bits(tmp_path: Path, undisturbed: dict[str, Any], number: int) -> None:
    assert launch(tmp_path, "kill-in-save", str(number)).wait(timeout=300) == -signal.SIGKILL
    assert (tmp_path / NAME / checkpoints.ASIDE / f"checkpoint-{number}").exists()
    before = None if number == 3 else str(tmp_path / NAME / "checkpoint-6")
    assert checkpoints.newest(tmp_path / NAME) == before
    assert launch(tmp_path).wait(timeout=300) == 0
    assert result(tmp_path) == undisturbed


def test_the_attention_was_watched(undisturbed: dict[str, Any]) -> None:
    watched = [entry for entry in undisturbed["history"] if "attention/1/entropy" in entry]
    assert [entry["step"] for entry in watched] == [1, 5, 9]
    assert all("attention/0/gap" in entry and "attention/0/alpha" in entry for entry in watched)


def test_a_finished_run_is_read_and_not_run_again(tmp_path: Path) -> None:
    first = tiny_run.start(tmp_path)
    begun = time.perf_counter()
    second = tiny_run.start(tmp_path)
    assert second["evaluation"] == first["evaluation"] and time.perf_counter() - begun < 5


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    tiny_run.start(tmp_path)
    other = Run("mlm", "lln_diag", 1, Budget(steps=5, batch=1, learning_rate=1.0))
    with pytest.raises(ValueError, match=r"holds another run .*budget.*seed: 0 there, 1 now.*choose another --out"):
        train(other, tmp_path / NAME, None, [], [], None)  # type: ignore[arg-type]


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    for _ in range(3000):
        if path.exists():
            return
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.02)
    raise AssertionError(f"{path} never came")


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    with held(tmp_path):
        lines = (
            "from pathlib import Path",
            "from lln_lab.experiments.training.lock import held",
            "with held(Path('.')): pass",
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", "\n".join(lines)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1 and "another process is running in" in done.stderr
    with held(tmp_path):  # free again
        pass


def test_a_finished_run_without_its_weights_is_refused_where_they_are_wanted(tmp_path: Path) -> None:
    run = Run("mlm", "lln_diag", 0, tiny_run.BUDGET)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(ValueError, match="a finished run without its weights"):
        train(run, tmp_path, lambda: None, [], [], lambda *_: {}, keep_model=True)  # type: ignore[arg-type, return-value]
