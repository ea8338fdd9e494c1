"""`lln reproduce table1 --model`: GLUE after somebody else's pre-training."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import lln_lab.data
from lln_cli.app import app
from lln_lab.experiments import table1_encoder as experiment
from lln_lab.experiments.models.pretrained import read_encoder

from .tiny_encoder import write_encoder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = lln_lab.data.load("glue/qnli", limit=60).train
    texts = [f"{rows[i]['text']} {rows[i]['pair']}" for i in range(len(rows))]
    return write_encoder(tmp_path_factory.mktemp("models") / "tiny-encoder", texts)


def invoke(*arguments: str, expected: int = 0) -> str:
    result = CliRunner().invoke(app, ["reproduce", "table1", *arguments], env={"COLUMNS": "250"})
    assert result.exit_code == expected, result.output
    return " ".join(result.output.split())


def test_it_runs_from_end_to_end_without_any_pre_training_of_ours(model: Path, tmp_path: Path) -> None:
    tasks = ("--task", "qnli", "--task", "mnli")
    names = ("softmax", "lln_diag:block_size=8", "near_far:block_size=8")
    given = [x for name in names for x in ("--attention", name)]
    invoke("--model", str(model), *tasks, *given, "--steps", "2", "--validation-rows", "8", "--out", str(tmp_path))
    found: dict[str, Any] = json.loads((tmp_path / "table1.json").read_text())
    assert [(run["task"], run["attention"]) for run in found["runs"]] == [
        (task, name.partition(":")[0]) for task in ("qnli", "mnli") for name in names
    ]
    for run in found["runs"]:
        assert run["model"]["encoder"] == "tiny-encoder" and str(model.parent) not in json.dumps(run)
        assert run["steps"] == 2 and 0 <= run["evaluation"]["accuracy"] <= 1 and run["data"]["guessing"] > 0
    assert not (tmp_path / "pretraining").exists()
    assert len(found["verdicts"]) == 4 and all("a spread needs 3 seeds" in x["numbers"] for x in found["verdicts"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--pretraining-steps", "3"), "--model brings its own pre-training and tokenizer"),
        (("--preset", "paper"), "the paper has no pretrained encoder of others"),
        (("--attention", "performer"), "performer has no conversion in closed form"),
    ],
)
def test_what_does_not_go_with_a_model_is_refused(
    arguments: tuple[str, ...], told: str, model: Path, tmp_path: Path
) -> None:
    assert told in invoke("--model", str(model), *arguments, "--out", str(tmp_path / "o"), expected=2)


def test_a_check_writes_nothing(model: Path, tmp_path: Path) -> None:
    text = invoke("--model", str(model), "--task", "sst2", "--attention", "near_far", "--check", "--out", str(tmp_path))
    assert "check passed" in text and not list(tmp_path.iterdir())


def test_the_conversion_is_fitted_to_the_longer_texts() -> None:
    rows = lln_lab.data.load("glue/qnli", limit=40).train
    chosen, lengths = experiment.longer_half(rows), experiment.lengths_of(rows)
    assert 20 <= len(chosen) < 40 and min(experiment.lengths_of(chosen)) >= sorted(lengths)[20]


def test_a_pair_is_read_as_one_text_and_cut_at_the_longer_one(model: Path) -> None:
    tokenizer, _ = read_encoder(str(model))
    row = lln_lab.data.load("glue/qnli", limit=1).train[0]
    make = experiment.tokenized(tokenizer, 12)
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (row["text"], row["pair"]))
    whole = experiment.tokenized(tokenizer, 500)(row, torch.Generator())
    assert whole["input_ids"].tolist() == [*first, *second] and whole["labels"] == row["label"]
    assert len(make(row, torch.Generator())["input_ids"]) == 12
    alone = make({**row, "pair": None, "text": "a"}, torch.Generator())
    assert alone["input_ids"].tolist() == tokenizer("a", add_special_tokens=False)["input_ids"]
