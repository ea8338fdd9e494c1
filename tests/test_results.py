"""What results are written as: JSON for every parser, and a command that can be typed again."""

import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lln.results import provenance, write_result


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    data = {"loss": math.nan, "history": [{"x": (1.0, math.inf)}], "kept": 0.5}
    text = write_result(tmp_path / "result.json", data).read_text()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(text, parse_constant=refuse)
    assert found["loss"] is None and found["history"][0]["x"] == [1.0, None] and found["kept"] == 0.5
    assert data["history"][0]["x"] == (1.0, math.inf)  # type: ignore[index]
    kept = json.loads(write_result(tmp_path / "run.json", data, strict=False).read_text())
    assert math.isnan(kept["loss"])


def test_a_command_is_recorded_as_it_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/lln", "bench", "zoo", "--small", "", "--name", "a b"])
    assert provenance()["command"] == "lln bench zoo --small '' --name 'a b'"


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("{here}/runs/fig8", "runs/fig8"),
        ("--out={here}/runs", "--out=runs"),
        ("/home/me/data/imdb/", "imdb"),
        ("--data=/home/me/data/imdb", "--data=imdb"),
        ("../elsewhere/a b.txt", "a b.txt"),
        ("runs/fig8", "runs/fig8"),
        ("lln_diag:alpha=2.0,beta=2.0", "lln_diag:alpha=2.0,beta=2.0"),
        ("...", "..."),
        ("x = /y", "x = /y"),
        ("", ""),
    ],
)
def test_a_command_holds_no_folder_of_this_machine(
    given: str, recorded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lln", "demo", given.format(here=tmp_path)])
    assert shlex.split(provenance()["command"]) == ["lln", "demo", recorded]


def test_a_module_is_recorded_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("from lln.results import provenance\nprint(provenance()['command'])\n")
    done = subprocess.run(
        [sys.executable, "-m", "told", "--part", "a"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "python -m told --part a"
