"""Every command of the paper's training experiments, end to end on embedded data with a handful of steps."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lln_cli.app import app
from lln_lab import data
from lln_lab.cli.reproduce_training import _arena_tasks
from lln_lab.cli.training import Choice
from lln_lab.data import MissingData

TWO = ("--attention", "softmax", "--attention", "lln_diag")
FEW = ("--steps", "2", "--validation-rows", "8")
COMMANDS: dict[str, tuple[str, ...]] = {
    "fig8": (*TWO, *FEW),
    "table1": (*TWO, *FEW, "--pretraining-steps", "2"),
    "table3": (*TWO, "--attention", "linformer", *FEW),
    "fig9": FEW,
    "fig10": ("--attention", "lln_diag", "--attention", "lln_diag:alpha=1.0,beta=1.0", *FEW),
    "fig10b": FEW,
    "table5": (*TWO, *FEW),
    "length": (*TWO, *FEW, "--lengths", "256,512"),
    "sensitivity": ("--attention", "lln", "--attention", "lln:alpha=1.0,beta=2.0", *FEW),
    "gaussian": FEW,
    "causal-lm": ("--attention", "softmax", "--attention", "near_far", *FEW),
}
TASKS = {"table1": {"sst2", "qnli", "mnli", "qqp"}, "table5": {"text", "listops", "retrieval", "pathfinder", "image"}}


def invoke(*arguments: str, expected: int = 0) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    assert result.exit_code == expected, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_from_end_to_end_on_embedded_data(command: str, tmp_path: Path) -> None:
    text = invoke("reproduce", command, *COMMANDS[command], "--out", str(tmp_path))
    (written,) = tmp_path.glob("*.json")
    found: dict[str, Any] = json.loads(written.read_text())
    assert str(written) in text and found["provenance"]["versions"]["torch"]
    assert all(run["steps"] == 2 and run["history"] and run["evaluation"] for run in found["runs"])
    assert found["tables"] and all(len(row) == len(t["columns"]) for t in found["tables"] for row in t["rows"])
    if command in TASKS:
        assert {run["task"] for run in found["runs"]} == TASKS[command]
    counts = [run["parameters"] for run in found["runs"] if run["task"] == found["runs"][0]["task"]]
    assert max(counts) <= 1.01 * min(counts), "compared models should have the same number of weights within 1 %"
    if found["experiment"] in (
        "fig8",
        "table3",
        "fig9",
        "fig10",
        "fig10b",
        "length",
        "sensitivity",
        "gaussian",
        "causal_lm",
    ):
        assert written.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # its parts are run one by one above; here they run again, one after the other
def test_everything_in_one_command_ends_with_the_report(tmp_path: Path) -> None:
    text = invoke("reproduce", "all", *TWO, "--steps", "1", "--validation-rows", "8", "--out", str(tmp_path / "runs"))
    assert "report" in text and (tmp_path / "runs" / "report.html").stat().st_size > 100_000
    written = {path.stem for path in (tmp_path / "runs").glob("*/*.json")}
    trained = {
        "fig8",
        "table1",
        "table2",
        "table3",
        "fig9",
        "fig10",
        "fig10b",
        "lra",
        "length",
        "sensitivity",
        "gaussian",
        "causal_lm",
    }
    assert written >= trained | {"fig1", "fig2", "fig5", "fig6", "fig7"}


def test_a_vision_transformer_on_cifar_has_257_tokens_ten_classes_and_a_score_of_ours(tmp_path: Path) -> None:
    given = ("reproduce", "table3", "--task", "cifar10")
    invoke(*given, "--attention", "near_far", "--attention", "softmax#1", *FEW, "--out", str(tmp_path))
    found = json.loads((tmp_path / "table3.json").read_text())
    first, second = found["runs"]
    assert first["task"] == "cifar10" and first["model"]["picture"] == 32 and first["model"]["patch"] == 2
    assert (first["steps"], second["steps"]) == (2, 1) and second["label"] == "softmax (1 steps)"
    assert found["title"] == "ViT on CIFAR-10" and found["tables"][0]["paper"] is None
    assert first["data"]["name"] == "cifar10" and 0.05 < first["data"]["guessing"] <= 0.5
    for asked in (("--preset", "paper", "--check"), ("--attention", "paper")):
        assert "the paper has no vision transformer on cifar10" in invoke(*given, *asked, expected=2)
    assert "no pictures 'cifar100'; choose from: dogs_vs_cats, cifar10" in invoke(*given[:3], "cifar100", expected=2)


def test_a_vision_transformer_can_have_other_layers_and_batches(tmp_path: Path) -> None:
    given = ("reproduce", "table3", "--attention", "softmax", *FEW)
    invoke(*given, "--layers", "3", "--batch", "4", "--out", str(tmp_path))
    (run,) = json.loads((tmp_path / "table3.json").read_text())["runs"]
    assert run["model"]["layers"] == 3 and run["budget"]["batch"] == 4
    text = invoke(*given, "--batch", "5", "--accumulate", "2", "--out", str(tmp_path / "o"), expected=2)
    assert "a batch of 5 cannot be split into 2 equal pieces" in text and not (tmp_path / "o").exists()


def test_a_missing_set_ends_with_a_message_and_its_exit_code(tmp_path: Path) -> None:
    text = invoke("reproduce", "table3", "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "o"), expected=3)
    assert "missing data" in text and "nowhere" in text


@pytest.mark.parametrize(
    "attention, told",
    [
        ("softmx", "the zoo has no member 'softmx'; it has: agent, block_diagonal"),
        ("lln:blocks=3", "lln has no option blocks; its options: alpha, beta"),
        ("lln:target", "'target' in 'lln:target' has no value"),
    ],
)
def test_a_wrong_attention_is_refused_with_what_fits(attention: str, told: str, tmp_path: Path) -> None:
    assert told in invoke("reproduce", "table3", "--attention", attention, "--out", str(tmp_path), expected=2)


def test_a_causal_language_model_refuses_an_attention_without_a_causal_form(tmp_path: Path) -> None:
    text = invoke("reproduce", "causal-lm", "--attention", "nystromformer", "--out", str(tmp_path), expected=2)
    assert "nystromformer cannot be trained here" in text


def test_wrong_lengths_are_refused_with_what_fits(tmp_path: Path) -> None:
    text = invoke("reproduce", "length", "--lengths", "1024,4k", "--out", str(tmp_path), expected=2)
    assert "whole numbers separated by commas" in text and "'4k'" in text
    text = invoke("reproduce", "length", "--lengths", "64,32", "--out", str(tmp_path), expected=2)
    assert "lengths must be increasing; got 64, 32" in text


def test_a_wrong_task_is_refused_before_the_pre_training(tmp_path: Path) -> None:
    assert "glue/sst2" in invoke("reproduce", "table1", "--task", "sst3", "--out", str(tmp_path), expected=2)
    assert not list(tmp_path.rglob("config.json"))


def test_the_paper_presets_are_the_papers_sizes() -> None:
    from lln_lab.experiments import fig8, lra, table1, table3

    assert (fig8.PRESETS["paper"].size.layers, fig8.PRESETS["paper"].size.width) == (12, 768)
    assert (table3.PRESETS["paper"].size.layers, table3.PRESETS["paper"].size.width) == (12, 128)
    assert lra.PRESETS["paper"].lengths == {
        "text": 4000, "listops": 2000, "retrieval": 4000, "pathfinder": 1024, "image": 1024
    }  # fmt: skip
    for experiment in (fig8, table1, table3, lra):
        assert "paper" in experiment.PRESETS["paper"].source, "where the hyper-parameters come from is said"


def test_a_folder_of_other_validation_rows_is_refused(tmp_path: Path) -> None:
    given = ("reproduce", "table3", "--attention", "softmax", "--steps", "1", "--out", str(tmp_path))
    invoke(*given, "--validation-rows", "8")
    assert "holds another run" in invoke(*given, "--validation-rows", "16", expected=2)


def test_runs_of_an_earlier_result_are_taken_over_and_others_refused(tmp_path: Path) -> None:
    given = ("reproduce", "table5", "--task", "listops", *FEW)
    invoke(*given, "--attention", "lln_diag", "--out", str(tmp_path / "a"))
    before = json.loads((tmp_path / "a" / "lra.json").read_text())
    before["runs"][0]["evaluation"]["accuracy"] = (
        0.625  # what no run of this size reaches: it must be read, not trained
    )
    known = tmp_path / "before.json"
    known.write_text(json.dumps(before))
    text = invoke(*given, *TWO, "--known", str(known), "--out", str(tmp_path / "b"))
    found = json.loads((tmp_path / "b" / "lra.json").read_text())
    assert "1 runs taken over" in text and {run["label"] for run in found["runs"]} == {"softmax", "lln_diag"}
    assert next(run for run in found["runs"] if run["label"] == "lln_diag")["evaluation"]["accuracy"] == 0.625

    longer = ("reproduce", "table5", "--task", "listops", "--steps", "3", "--validation-rows", "8", *TWO)
    text = invoke(*longer, "--known", str(known), "--out", str(tmp_path / "c"), expected=2)
    assert "holds no runs of 3 steps, but of 2" in text
    other = {**before["runs"][0], "attention": "elu", "label": "elu"}
    known.write_text(json.dumps({**before, "runs": [*before["runs"], other]}))
    text = invoke(*longer, "--attention", "lln_diag#2", "--known", str(known), "--out", str(tmp_path / "c"))
    assert "1 runs taken over" in text and "1 left out, as they trained for other steps" in text
    runs = json.loads((tmp_path / "c" / "lra.json").read_text())["runs"]
    assert {run["label"]: run["steps"] for run in runs} == {"softmax": 3, "lln_diag": 3, "lln_diag (2 steps)": 2}
    assert [r["evaluation"]["accuracy"] for r in runs if r["label"] == "lln_diag (2 steps)"] == [0.625]
    rows = ("reproduce", "table5", "--task", "listops", "--steps", "2", "--validation-rows", "9", *TWO)
    text = invoke(*rows, "--known", str(known), "--out", str(tmp_path / "f"), expected=2)
    assert "holds another run" in text and "data" in text

    known.write_text('{"tables": []}')
    text = invoke(*given, "--known", str(known), "--out", str(tmp_path / "d"), expected=2)
    assert "holds no runs of a training experiment" in text
    text = invoke("reproduce", "all", "--known", str(known), "--out", str(tmp_path / "e"), expected=2)
    assert "--known is for one experiment" in text


def test_lists_of_another_length_but_not_pictures(tmp_path: Path) -> None:
    given = ("reproduce", "table5", "--attention", "lln_diag", *FEW, "--length", "64", "--out", str(tmp_path))
    invoke(*given, "--task", "listops")
    (run,) = json.loads((tmp_path / "lra.json").read_text())["runs"]
    assert run["model"]["length"] == 64
    assert "given by the picture" in invoke(*given, "--task", "image", "--task", "text", expected=2)


def test_pretraining_of_another_folder_is_not_taken_for_the_same(tmp_path: Path) -> None:
    for name, seed_steps in (("a", "1"), ("b", "2")):
        options = ("--attention", "softmax", "--validation-rows", "8", "--keep-models", "--steps", seed_steps)
        invoke("reproduce", "fig8", *options, "--out", str(tmp_path / name))
    given = ("reproduce", "table1", "--task", "sst2", "--attention", "softmax", *FEW, "--out", str(tmp_path / "glue"))
    invoke(*given, "--pretrained", str(tmp_path / "a"), "--pretraining-steps", "1")
    text = invoke(*given, "--pretrained", str(tmp_path / "b"), "--pretraining-steps", "2", expected=2)
    assert "holds another run" in text and "pretrained_sha256" in text


def test_everything_goes_on_without_the_retrieval_data_that_few_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str, source: str | None = None, **_: Any) -> Any:
        if name == "lra/retrieval":
            raise MissingData(name, "not there", "fetch it")
        return data_load(name, **_)

    data_load = data.load
    monkeypatch.setattr(data, "load", load)
    found = _arena_tasks(Choice(data=str(tmp_path)))
    assert set(found) == TASKS["table5"] - {"retrieval"} and "left out" in capsys.readouterr().out
