"""The Monte Carlo behind the table of moment matching."""

import json
import math
from pathlib import Path

import numpy
import pytest
import torch
import typer
from typer.testing import CliRunner

from lln.matching import calibration
from lln.ops.moments.table import load
from lln_cli.calibrate import calibrate


def test_curves_are_those_of_the_matrices_themselves() -> None:
    head_dim, length, seed = 8, 256, 3
    curves = calibration.measure(head_dim, length, seed)
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(length, head_dim, generator=generator, dtype=torch.float64) for _ in range(2))
    q, k = q / q.std(correction=0), k / k.std(correction=0)
    for i in (3, 14, 20):
        t = 2.0 ** calibration.LOG2_T[i]
        log_p = torch.log_softmax((t / head_dim) ** 0.5 * q @ k.T, dim=-1)
        assert curves.softmax_deficit[i] == pytest.approx(_deficit(log_p), rel=1e-8)
        assert curves.softmax_variance[i] == pytest.approx(float(log_p.var()), rel=5e-3)
    for i in (2, 12, 16, 20):
        alpha = (2.0 ** calibration.LOG2_S[i] / 2) ** 0.5
        scores = torch.logsumexp(alpha * (q[:, None] + k[None]), dim=-1)
        log_p = torch.log_softmax(scores, dim=-1)
        assert curves.lln_deficit[i] == pytest.approx(_deficit(log_p), rel=1e-8)
        assert curves.lln_variance[i] == pytest.approx(float(log_p.var()), rel=5e-3)


def _deficit(log_p: torch.Tensor) -> float:
    return float((log_p.exp() * (log_p + math.log(log_p.shape[-1]))).sum(-1).mean())


def test_long_keys_in_pieces_are_the_same_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = calibration.measure(256, 4096, 0, rows=16)
    monkeypatch.setattr(calibration, "_FEATURES_AT_A_TIME", 1 << 30)
    pieces = calibration.measure(256, 4096, 0, rows=16)
    numpy.testing.assert_allclose(whole.lln_deficit, pieces.lln_deficit, rtol=1e-6)
    numpy.testing.assert_allclose(whole.lln_variance, pieces.lln_variance, rtol=1e-6)


@pytest.mark.parametrize(("head_dim", "length"), [(16, 256), (64, 1024)])
@pytest.mark.parametrize("target", ["entropy", "variance"])
def test_the_shipped_table_is_what_calibration_measures(head_dim: int, length: int, target: str) -> None:
    """Four of the seeds give the table's values within their scatter."""
    table = load()
    curves = calibration.average(head_dim, length, [0, 1, 2, 3])
    found, reached = calibration.invert(curves, target, length)
    lengths = table["log2_length"]
    row = round((math.log2(length) - lengths["first"]) / lengths["step"])
    shipped = numpy.array(table["log2_ratio"][target][table["head_dims"].index(head_dim)][row])
    assert reached.all()
    assert numpy.abs(found - shipped)[calibration.STORED_LOG2_T <= 2].max() < math.log2(1.1)


def test_the_same_seed_gives_the_same_curves() -> None:
    one, other = (calibration.measure(8, 64, 5) for _ in range(2))
    assert numpy.array_equal(one.lln_deficit, other.lln_deficit)
    assert not numpy.array_equal(one.lln_deficit, calibration.measure(8, 64, 6).lln_deficit)


def test_monotone_interpolation_is_exact_at_the_points_and_never_overshoots() -> None:
    x = numpy.array([0.0, 1.0, 1.5, 4.0, 4.1])
    y = numpy.array([0.0, 0.1, 5.0, 5.0, 9.0])
    numpy.testing.assert_allclose(calibration.monotone_cubic(x, y, x), y, atol=1e-12)
    dense = calibration.monotone_cubic(x, y, numpy.linspace(-1, 5, 500))
    assert (numpy.diff(dense) >= -1e-12).all() and dense[0] == 0.0 and dense[-1] == 9.0


def test_an_unreached_target_keeps_the_last_spread_that_was() -> None:
    curves = calibration.measure(8, 64, 0)
    curves.lln_variance = numpy.minimum(curves.lln_variance, 3.0)
    ratio, reached = calibration.invert(curves, "variance", 64)
    assert reached[0] and not reached[-1]
    log2_s = ratio + calibration.STORED_LOG2_T
    assert (numpy.diff(log2_s) >= 0).all()
    assert log2_s[-1] == log2_s[~reached][0]


def test_the_line_of_eq_34_fitted_for_the_authors_range_is_near_theirs() -> None:
    a, b = calibration.fit_line(64, (1.0, 16.0), seeds=2)
    assert a == pytest.approx(0.1486, rel=0.1) and b == pytest.approx(-0.355, rel=0.25)
    assert calibration.fit_line(64, (1.0, 4.0), seeds=2)[0] < 0.5 * a  # convex: the line depends on the range


def test_a_range_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="0 < low < high"):
        calibration.fit_line(64, (4.0, 1.0))


def test_the_command_writes_a_table_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "LENGTHS", (16, 64))
    app = typer.Typer()
    app.command()(calibrate)
    out = tmp_path / "table.json"
    arguments = ["--out", str(out), "--seeds", "2", "--head-dim", "8", "--head-dim", "16"]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    table = json.loads(out.read_text())
    assert table["head_dims"] == [8, 16] and table["seeds"] == [0, 1]
    assert numpy.shape(table["log2_ratio"]["entropy"]) == (2, 2, table["log2_t"]["points"])
    monkeypatch.setattr(calibration, "average", None)  # finished cells are not measured again
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    assert json.loads(out.read_text())["log2_ratio"] == table["log2_ratio"]
