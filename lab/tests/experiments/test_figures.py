"""Each figure runs, writes its JSON and PNG, and its verdicts follow from its numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("typer")

from typer.testing import CliRunner

from lln_lab.cli.reproduce import app
from lln_lab.experiments import fig1, fig2, fig5, fig6, fig7
from lln_lab.experiments.tiny_data import masked_bytes, text_bytes
from lln_lab.experiments.verdict import FAILS, HOLDS, WITHIN, Verdict, outcome_over, range_of

TINY: dict[Any, dict[str, Any]] = {
    fig1: {"layers": 2, "width": 16, "length": 24, "batch": 2, "steps": 4, "points": 2, "rate": 1e-3},
    fig2: {"length": 48, "dim": 16, "seeds": 2},
    fig5: {"length": 48, "dim": 16, "seeds": 2},
    fig6: {"draws": 2000, "length": 32},
    fig7: {"length": 48, "dim": 16, "score_variance": 1.0},
}  # fmt: skip


@pytest.mark.parametrize("figure", TINY, ids=lambda module: module.__name__.rsplit(".", 1)[1])
def test_a_figure_writes_its_numbers_its_picture_and_its_verdicts(
    figure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(figure.PRESETS, "quick", TINY[figure])
    name = figure.__name__.rsplit(".", 1)[1]
    result = CliRunner().invoke(app, [name, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    data = json.loads((tmp_path / f"{name}.json").read_text())
    assert data["provenance"]["seed"] == 0
    assert {verdict["outcome"] for verdict in data["verdicts"]} <= {HOLDS, WITHIN, FAILS}
    assert all(verdict["numbers"] for verdict in data["verdicts"])
    assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert figure.verdicts(data) == [Verdict(**verdict) for verdict in data["verdicts"]]  # drawn from the JSON alone


def test_figure_2_tells_a_kernel_that_ignores_temperature_from_one_that_does_not() -> None:
    taus = [0.5, 1.0, 2.0]
    flat = {"entropy": [8.9, 8.9, 8.95], "gap": [0.98, 0.98, 0.99]}
    rising = {"entropy": [5.0, 7.0, 8.0], "gap": [0.5, 0.8, 0.9]}
    curves = {name: flat if name in ("relu", "quadratic", "elu") else rising for name in fig2.KERNELS}
    rest = {"temperature": taus, "seeds": 1, "singular_over_eigenvalue": [[2.0, 3.0]] * 3}
    found = fig2.verdicts({"curves": curves, **rest})
    assert [verdict.outcome for verdict in found] == [HOLDS, HOLDS, HOLDS, FAILS, HOLDS, FAILS]
    changed = {**curves, "relu": rising, "lln_paper": {"entropy": [2.0, 6.9, 8.0], "gap": [0.5, 0.8, 0.9]}}
    found = fig2.verdicts({"curves": changed, **rest})
    assert found[1].outcome == WITHIN and "τ = 1 to 2" in found[1].numbers
    assert found[4].outcome == WITHIN


def test_fentons_formula_is_exact_for_one_term() -> None:
    assert fig6.fenton(0.7, 1) == pytest.approx(0.7)


def test_verdicts_name_where_a_claim_holds() -> None:
    assert [outcome_over(x) for x in ([True, True], [True, False], [False])] == [HOLDS, WITHIN, FAILS]
    assert range_of([1.0, 2.0, 3.0], [False, True, True]) == "2 to 3"
    with pytest.raises(ValueError, match="perhaps"):
        Verdict("a claim", "perhaps", "")


class TestData:
    def test_hidden_bytes_are_the_ones_to_guess(self) -> None:
        text = text_bytes()
        tokens, labels = masked_bytes(text, 4, 100, torch.Generator().manual_seed(0))
        hidden = tokens == 256
        assert torch.equal(hidden, labels >= 0) and 20 < hidden.sum() < 100

    def test_text_comes_from_a_file_or_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("first ")
        (tmp_path / "b.txt").write_text("second")
        assert bytes(text_bytes(tmp_path).tolist()) == b"first second"
        assert bytes(text_bytes(tmp_path / "b.txt").tolist()) == b"second"
        with pytest.raises(FileNotFoundError, match="neither a file nor a folder"):
            text_bytes(tmp_path / "c.txt")


def test_figure_2_is_quick_by_fewer_seeds_and_not_by_shorter_sequences() -> None:
    quick, full = fig2.PRESETS["quick"], fig2.PRESETS["full"]
    assert quick["length"] == full["length"] and quick["seeds"] < full["seeds"]


@pytest.mark.parametrize("name", ["fig3", "fig4"])
def test_the_diagrams_are_vector_drawings_with_their_words_as_text(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [name, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    drawn = (tmp_path / f"{name}.svg").read_text()
    assert drawn.count("<path") > 20 and "<image" not in drawn, "paths, not a picture in an envelope"
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
