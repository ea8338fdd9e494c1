"""The benchmark of long documents, end to end at a small size."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lln.cli.app import app

pytest.importorskip("transformers")


def test_encoding_writes_ratios_to_softmax(tmp_path: Path) -> None:
    arguments = ["bench", "encode", "--lengths", "32,64", "--batch", "1", "--repeats", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "encode.json").read_text())
    assert [row["length"] for row in result["rows"]] == [32, 64]
    assert all(row["ratio"]["sdpa"] == 1 and row["ratio"]["lln_diag"] > 0 for row in result["rows"])


def test_lengths_that_are_no_numbers_are_refused() -> None:
    done = CliRunner().invoke(app, ["bench", "encode", "--lengths", "long"])
    assert done.exit_code == 2 and "whole numbers" in done.output
