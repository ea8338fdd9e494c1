"""The benchmark of long documents, end to end at a small size."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lln_cli.app import app

pytest.importorskip("transformers")

from lln_lab.bench.encode import Plan, crossover, run


def test_encoding_writes_ratios_to_softmax(tmp_path: Path) -> None:
    arguments = ["bench", "encode", "--lengths", "32,64", "--batch", "1", "--repeats", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "encode.json").read_text())
    assert [row["length"] for row in result["rows"]] == [32, 64]
    assert all(row["ratio"]["sdpa"] == 1 and row["ratio"]["lln_diag"] > 0 for row in result["rows"])


def test_lengths_already_measured_in_the_same_way_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "encode.json"
    first = run(Plan(lengths=(32,), batch=1, repeats=1), path, lambda _: None)
    more = run(Plan(lengths=(32, 48), batch=1, repeats=1), path, lambda _: None)
    assert [row["length"] for row in more["rows"]] == [32, 48] and more["rows"][0]["seconds"] == first["rows"][0][
        "seconds"
    ]
    other = run(Plan(lengths=(32,), batch=2, repeats=1), path, lambda _: None)
    assert other["batch"] == 2 and other["rows"][0]["seconds"] != first["rows"][0]["seconds"]


@pytest.mark.parametrize(("ratios", "expected"), [((1.2, 0.9, 0.8), 2), ((0.9, 1.1, 0.8), 4), ((0.9, 0.8, 1.1), None)])
def test_the_crossover_is_the_length_from_which_on_softmax_is_slower(
    ratios: tuple[float, ...], expected: int | None
) -> None:
    rows = [{"length": length, "ratio": {"lln": ratio}} for length, ratio in zip((1, 2, 4), ratios, strict=True)]
    assert crossover(rows, "lln") == expected


def test_lengths_that_are_no_numbers_are_refused() -> None:
    done = CliRunner().invoke(app, ["bench", "encode", "--lengths", "long"])
    assert done.exit_code == 2 and "whole numbers" in done.output
