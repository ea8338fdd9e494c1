"""Who forgets the length of the query: what is measured, of whom, and what follows from it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("typer")

import itertools

from typer.testing import CliRunner

from lln import zoo
from lln_lab.cli.reproduce import app
from lln_lab.experiments import query_length
from lln_lab.experiments.verdict import FAILS, HOLDS, Verdict

TINY = {"directions": 8, "tokens": (16, 32), "dim": 16, "seeds": 2}


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    before = query_length.PRESETS["quick"]
    query_length.PRESETS["quick"] = TINY
    try:
        return query_length.run("quick")
    finally:
        query_length.PRESETS["quick"] = before


def test_every_member_is_measured_or_said_why_not(measured: dict[str, Any]) -> None:
    assert sorted([*measured["members"], *measured["not_measured"]]) == zoo.names()
    assert {"flash", "tnn", "gated_delta"} <= set(measured["not_measured"]) and "softmax" in measured["members"]


def test_softmax_sharpens_with_the_query_and_homogeneous_features_do_not(measured: dict[str, Any]) -> None:
    softmax, relu, lln = (measured["members"][name]["by_length_of_query"] for name in ("softmax", "relu", "lln"))
    assert all(long < short for short, long in itertools.pairwise(softmax))
    assert max(relu) - min(relu) < 1e-9
    assert lln[0] - lln[-1] > 0.3
    assert measured["members"]["softmax"]["follows"] == 1.0


def test_entropies_are_those_of_the_rows_that_have_that_length() -> None:
    """Softmax by hand, on the same draw."""
    import numpy

    random = numpy.random.default_rng(3)
    found, negative = query_length.mixed_lengths("softmax", TINY, random)
    random = numpy.random.default_rng(3)
    unit = query_length._unit(random.standard_normal((8, 16)))
    random.permutation(8 * len(query_length.LENGTHS))
    k = torch.from_numpy(random.standard_normal((8 * len(query_length.LENGTHS), 16)))
    p = (query_length.LENGTHS[2] * unit @ k.T / 4).softmax(dim=-1)
    assert found[2] == pytest.approx(float(-(p * p.log2()).sum(dim=-1).mean()), rel=1e-12)
    assert negative == 0


def test_a_gap_is_measured_of_stochastic_matrices_only(measured: dict[str, Any]) -> None:
    assert all(gap is not None for gap in measured["members"]["softmax"]["by_temperature"]["gap"])
    assert None in measured["members"]["nystromformer"]["by_temperature"]["gap"]
    assert math.isnan(query_length.concentration(torch.full((4, 4), 0.5, dtype=torch.float64))[1])


def test_verdicts_follow_from_the_shares() -> None:
    members = {name: {"follows": share} for name, share in (("relu", 0.0), ("quadratic", 0.0), ("lln", 0.4))}
    data: dict[str, Any] = {"members": {**members, "lln_diag": {"follows": 0.5}}, "seeds": 2}
    assert [verdict.outcome for verdict in query_length.verdicts(data)] == [HOLDS, HOLDS]
    data["members"] = {name: {"follows": 0.09 if "lln" in name else 0.2} for name in data["members"]}
    assert [verdict.outcome for verdict in query_length.verdicts(data)] == [FAILS, FAILS]


def test_the_command_writes_numbers_and_picture(
    measured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_length, "run", lambda preset, seed: measured)
    result = CliRunner().invoke(app, ["query-length", "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    data = json.loads((tmp_path / "query_length.json").read_text())
    assert query_length.verdicts(data) == [Verdict(**verdict) for verdict in data["verdicts"]]
    assert (tmp_path / "query_length.png").exists()
