"""The command line as a user types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lln.cli.app import app

runner = CliRunner()


def invoke(*arguments: str) -> str:
    result = runner.invoke(app, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.output


def test_info_says_what_works_and_what_is_calibrated() -> None:
    text = invoke("info")
    for expected in ("lln-attention", "torch", "native", "chunked", "oracle", "head size", "entropy", "variance"):
        assert expected in text


def test_demo_writes_plots_and_a_result_with_its_provenance(tmp_path: Path) -> None:
    text = invoke("demo", "--steps", "2", "--longest", "512", "--out", str(tmp_path))
    for expected in ("validation loss", "temperature after", "time per step", "LLN+Diag"):
        assert expected in text
    result = json.loads((tmp_path / "demo.json").read_text())
    assert set(result["training"]) == {"softmax", "lln", "lln_diag"}
    assert all(len(run["loss"]) == 2 for run in result["training"].values())
    assert result["provenance"]["versions"]["torch"] and result["provenance"]["seed"] == 0
    assert list(result["times"]["lln"]) == ["256", "512"]
    for name in ("training.png", "time.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_demo_repeats_itself(tmp_path: Path) -> None:
    losses = []
    for run in ("a", "b"):
        invoke("demo", "--steps", "2", "--longest", "256", "--out", str(tmp_path / run))
        losses.append(
            {k: v["loss"] for k, v in json.loads((tmp_path / run / "demo.json").read_text())["training"].items()}
        )
    assert losses[0] == losses[1]


@pytest.mark.parametrize("command", [("--help",), ("demo", "--help"), ("bench", "--help"), ("calibrate", "--help")])
def test_help_helps(command: tuple[str, ...]) -> None:
    assert "Usage" in invoke(*command)


def test_a_wrong_option_is_refused_with_what_fits() -> None:
    result = runner.invoke(app, ["demo", "--steps", "0"], env={"COLUMNS": "120"})
    assert result.exit_code == 2 and "--steps" in result.output and "greater than or equal to 1" in result.output
