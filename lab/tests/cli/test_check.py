"""`--check`: every training command counts what its paper-sized models cost, and does one tiny step of them, here."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lln.zoo.encoder import count_parameters
from lln_cli.app import app
from lln_lab.cli.reproduce_training import COMMANDS
from lln_lab.experiments import check, fig8, table3

ONE = {"fig10": ("--attention", "lln_diag:alpha=2.0,beta=2.0"), "table1": ("--attention", "lln_diag", "--task", "rte")}
TASK = {"table4": "listops", "table5": "retrieval", "sensitivity": "image", "length": "recall"}


SAME_MODEL = {"gaussian": "fig8", "table4": "table5"}  # as another command's
EACH = [pytest.param(x, marks=[pytest.mark.slow] if x in SAME_MODEL else []) for x in COMMANDS]


@pytest.mark.parametrize("command", EACH)
def test_a_check_of_the_papers_preset_passes(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ONE.get(command, ("--attention", "lln_diag"))
    given += ("--task", TASK[command]) if command in TASK else ()
    result = CliRunner().invoke(
        app, ["reproduce", command, "--preset", "paper", "--check", *given], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    assert "check passed" in result.output and "Layers are taken as alike" in " ".join(result.output.split())
    assert not list(tmp_path.iterdir()), "a check writes nothing"


def test_what_is_counted_without_running_is_what_a_model_has() -> None:
    settings = replace(fig8.PRESETS["cpu"], contestants=("softmax",), vocabulary=300)
    (planned,) = fig8.planned(replace(settings, size=replace(settings.size, layers=8, width=32, length=32)))
    counted = check.count(planned)
    model = planned.build(8)
    assert counted.weights == count_parameters(model)
    kept: dict[int, torch.UntypedStorage] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: (kept.setdefault(x.untyped_storage().data_ptr(), x.untyped_storage()), x)[1], lambda x: x
    ):
        planned.counted(model, planned.samples(2))
    for p in model.parameters():
        kept.pop(p.untyped_storage().data_ptr(), None)
    assert counted.saved == pytest.approx(sum(x.nbytes() for x in kept.values()) / 2, rel=0.02)
    assert counted.flops == pytest.approx(check.count(replace(planned, layers=4)).flops * 2, rel=0.3)


def test_pieces_and_checkpointing_lower_what_a_check_says() -> None:
    (planned,) = table3.planned(replace(table3.PRESETS["cpu"], contestants=("lln_diag",)))
    less = replace(planned, budget=replace(planned.budget, checkpointing=True))
    assert check.count(less).saved < check.count(planned).saved / 3
    assert replace(planned.budget, accumulate=4).at_once() == planned.budget.batch // 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("fig8", "--accumulate", "3"), "a batch of 4 cannot be split into 3 equal pieces"),
        (("table3", "--precision", "float8"), "float8"),
        (("fig10b", "--precision", "float32", "--steps", "1"), "only float16 has a loss scale"),
        (("fig9", "--attention", "softmax", "--steps", "1", "--validation-rows", "2"), "not softmax"),
        (("table5", "--task", "chess", "--check"), "no task chess"),
        (("gaussian", "--seeds", "0"), "--seeds"),
    ],
)
def test_bad_input_ends_in_words_and_exit_code_2(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path / "o")], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and told in " ".join(result.output.split()), result.output
    assert "Traceback" not in result.output


def test_a_damaged_picture_is_named(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for kind in ("cat", "dog"):
            (tmp_path / split / kind).mkdir(parents=True)
            (tmp_path / split / kind / "1.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut short")
    given = ["reproduce", "table3", "--data", str(tmp_path), "--out", str(tmp_path / "o"), "--steps", "1"]
    result = CliRunner().invoke(app, given, env={"COLUMNS": "300", "LLN_CACHE": str(tmp_path / "cache")})
    words = " ".join(result.output.split())
    assert result.exit_code == 2 and "1.jpg of" in words and "is damaged: remove or replace it" in words
