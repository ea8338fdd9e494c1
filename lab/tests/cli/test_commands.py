"""The laboratory's commands as a user types them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lln_cli.app import app

runner = CliRunner()


def invoke(*arguments: str) -> str:
    result = runner.invoke(app, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_demo_ends_with_the_path_of_its_report(tmp_path: Path) -> None:
    text = invoke("demo", "--steps", "2", "--longest", "512", "--out", str(tmp_path))
    result = json.loads((tmp_path / "demo.json").read_text())
    assert [run["attention"] for run in result["runs"]] == ["softmax", "lln", "lln_diag"]
    assert all(run["steps"] == 2 and "attention/0/entropy" in run["history"][0] for run in result["runs"])
    assert result["provenance"]["versions"]["torch"] and result["timing"]["lengths"] == [256, 512]
    assert {(m["attention"], m["layer"], m["head"]) for m in result["maps"]} == {
        (kind, layer, head) for kind in ("softmax", "lln", "lln_diag") for layer in range(3) for head in range(4)
    }
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    page = tmp_path / "report.html"
    assert str(page) in text.replace("\n", "") and "lln_diag" in page.read_text()


@pytest.mark.parametrize("command", ["demo", "bench", "reproduce", "report"])
def test_help_helps(command: str) -> None:
    assert "Usage" in invoke(command, "--help")


def test_a_wrong_option_is_refused_with_what_fits() -> None:
    result = runner.invoke(app, ["demo", "--steps", "0"], env={"COLUMNS": "120"})
    assert result.exit_code == 2 and "--steps" in result.output and "greater than or equal to 1" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("reproduce", "fig9", "--target", "bogus", "--steps", "1"), "bogus"),
        (("reproduce", "fig1", "--data", "nowhere/at/all", "--steps", "1"), "nowhere/at/all"),
        (("bench", "zoo", "--members", "bogus"), "no member 'bogus'"),
    ],
)
def test_mistakes_end_in_words_and_an_exit_code(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    result = runner.invoke(app, [*arguments, "--out", str(tmp_path / "out")], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and told in " ".join(result.output.split()), result.output
    assert "Traceback" not in result.output
