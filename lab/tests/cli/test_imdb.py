"""`lln reproduce imdb`: a tiny random BERT in the place of a pretrained one, on generated reviews."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DistilBertConfig, DistilBertModel
from typer.testing import CliRunner

import lln_lab.data
from lln_cli.app import app
from lln_lab.experiments import imdb
from lln_lab.experiments.contestants import parse
from lln_lab.experiments.evidence import missing
from lln_lab.experiments.models.pretrained import PooledClassifier, read_encoder, stretch

from .tiny_encoder import POSITIONS, write_encoder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder and a tokenizer of the generated reviews' words."""
    rows = lln_lab.data.load("lra/text", limit=40).train
    texts = [bytes((rows[i]["input_ids"] - 1).tolist()).decode() for i in range(len(rows))]
    return write_encoder(tmp_path_factory.mktemp("models") / "tiny-encoder", texts)


def invoke(*arguments: str, expected: int = 0) -> str:
    result = CliRunner().invoke(app, ["reproduce", "imdb", *arguments], env={"COLUMNS": "250"})
    assert result.exit_code == expected, result.output
    return " ".join(result.output.split())


def test_it_runs_from_end_to_end_with_positions_stretched(model: Path, tmp_path: Path) -> None:
    given = ("--attention", "softmax", "--attention", "near_far:block_size=16", "--attention", "lln_diag:block_size=16")
    few = ("--steps", "2", "--validation-rows", "8", "--length", "128")
    invoke("--model", str(model), *given, *few, "--out", str(tmp_path))
    found: dict[str, Any] = json.loads((tmp_path / "imdb.json").read_text())
    assert [run["attention"] for run in found["runs"]] == ["softmax", "near_far", "lln_diag"]
    for run in found["runs"]:
        assert run["steps"] == 2 and run["task"] == "imdb" and 0 <= run["evaluation"]["accuracy"] <= 1
        assert run["saved_bytes"] > 0 and run["evaluation_cpu_seconds"] > 0 and run["cpu_seconds_per_step"] > 0
        assert run["model"]["positions"] == POSITIONS and run["model"]["length"] == 128
    counts = [run["parameters"] for run in found["runs"]]
    assert max(counts) <= 1.01 * min(counts)
    assert "tiny-encoder" in json.dumps(found["runs"][0]) and str(model.parent) not in json.dumps(found["runs"])
    (table,) = found["tables"]
    assert all(len(row) == len(table["columns"]) for row in table["rows"])
    assert len(found["verdicts"]) == 2 and all("a spread needs 3 seeds" in x["numbers"] for x in found["verdicts"])
    assert "another run" in invoke("--model", str(model), *given, *few[:-1], "96", "--out", str(tmp_path), expected=2)


def test_at_equal_time_the_table_compares_with_the_softmax_that_ran(model: Path, tmp_path: Path) -> None:
    given = (
        "--attention",
        "near_far:block_size=16",
        "--attention",
        "softmax#1",
        "--steps",
        "2",
        "--validation-rows",
        "8",
    )
    invoke("--model", str(model), *given, "--seeds", "2", "--out", str(tmp_path))
    found = json.loads((tmp_path / "imdb.json").read_text())
    to_softmax = {row[0]: row[3] for row in found["tables"][0]["rows"]}
    assert to_softmax["softmax (1 steps)"] is None and to_softmax["near_far (block_size=16)"].count("[") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--steps", "1"), "a pretrained encoder is needed: --model with a BERT encoder in Hugging Face's layout"),
        (("--model", "NOWHERE"), "does not fit --model"),
        (("--model", "MODEL", "--attention", "performer"), "performer has no conversion in closed form"),
        (("--model", "MODEL", "--attention", "lln_diag:mix=0.3"), "the conversion fits mix to data; options that fit"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(
    arguments: tuple[str, ...], told: str, model: Path, tmp_path: Path
) -> None:
    places = {"MODEL": str(model), "NOWHERE": str(tmp_path / "nowhere")}
    assert told in invoke(*(places.get(x, x) for x in arguments), "--out", str(tmp_path / "o"), expected=2)


def test_an_encoder_of_another_kind_is_refused(tmp_path: Path) -> None:
    DistilBertModel(DistilBertConfig(vocab_size=20, dim=32, n_layers=1, n_heads=4, hidden_dim=48)).save_pretrained(
        tmp_path
    )
    with pytest.raises(ValueError, match=r"it is a distilbert\); what fits: a BERT encoder"):
        read_encoder(str(tmp_path))


def test_a_check_takes_the_given_encoders_shape(model: Path) -> None:
    text = invoke("--model", str(model), "--attention", "near_far", "--length", "96", "--check")
    weights = sum(p.numel() for p in read_encoder(str(model))[1].parameters())
    counted = int(re.findall(r"near-far │ +([\d,]+) │", text)[0].replace(",", ""))
    assert "check passed" in text and weights < counted < 1.02 * weights  # a head, and what the conversion fits


def test_stretched_positions_lie_between_their_neighbours(model: Path) -> None:
    _, encoder = read_encoder(str(model))
    own = encoder.embeddings.position_embeddings.weight.detach().clone()
    stretch(encoder, POSITIONS // 2)
    assert torch.equal(encoder.embeddings.position_embeddings.weight, own), "positions that suffice stay as they are"
    stretch(encoder, 2 * POSITIONS - 1)
    longer = encoder.embeddings.position_embeddings.weight
    torch.testing.assert_close(longer[::2], own)
    torch.testing.assert_close(longer[1::2], (own[1:] + own[:-1]) / 2)
    ids = torch.randint(4, 20, (1, 2 * POSITIONS - 1))
    assert torch.isfinite(encoder(ids).last_hidden_state).all() and longer.requires_grad


def test_the_softmax_contestant_is_the_encoder_itself_and_heads_begin_alike(model: Path) -> None:
    tokenizer, encoder = read_encoder(str(model))
    rows = lln_lab.data.load("lra/text", limit=4).train
    make = imdb.tokenized(tokenizer, 96)
    batches = [{"input_ids": make(rows[i], torch.Generator())["input_ids"][None]} for i in range(4)]

    def made(text: str) -> PooledClassifier:
        torch.manual_seed(7)
        return PooledClassifier(encoder, 2, parse(text), 96, batches).eval()

    softmax, converted = made("softmax"), made("near_far:block_size=16")
    ids = batches[0]["input_ids"]
    hidden = encoder.eval()(ids).last_hidden_state
    torch.testing.assert_close(softmax(ids)["logits"], softmax.head(hidden.mean(dim=1)))
    assert torch.equal(softmax.head.weight, converted.head.weight)
    assert not torch.equal(softmax(ids)["logits"], converted(ids)["logits"])
    assert converted.encoder.config._attn_implementation == "lln_near_far"
    batch = {"input_ids": ids, "labels": torch.tensor([1])}
    converted.train()(**batch)["loss"].backward()
    idle = {name.split(".")[-2] for name, x in converted.named_parameters() if x.grad is None}
    assert not idle, "everything is fine-tuned, what the conversion fitted included"


def test_validation_reviews_are_sorted_by_length_and_the_same_reviews() -> None:
    settings = imdb.Settings(budget=imdb.PRESETS["cpu"].budget, length=64, validation_rows=50)
    sorted_rows = imdb.load(settings, None).validation
    lengths = [len(sorted_rows[i]["input_ids"]) for i in range(50)]
    assert lengths == sorted(lengths) and len(set(lengths)) > 10
    whole = lln_lab.data.load("lra/text", length=imdb.BYTES * 64, limit=50).validation
    assert sorted(lengths) == sorted(len(whole[i]["input_ids"]) for i in range(50))


def run_of(label: str, accuracy: float, seed: int) -> dict[str, Any]:
    return {
        "task": "imdb", "attention": label, "label": label, "seed": seed, "steps": 10, "options": {},
        "evaluation": {"accuracy": accuracy}, "data": {"guessing": 0.5},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("softmax", "gap", "outcome"),
    [(0.90, 0.001, "holds"), (0.90, 0.02, "does not hold"), (0.79, 0.001, "inconclusive")],
)
def test_on_a_par_is_half_a_point_once_softmax_has_80_percent(softmax: float, gap: float, outcome: str) -> None:
    noise = (0.001, 0.0, -0.001)
    runs = [run_of("softmax", softmax, seed) for seed in range(3)]
    runs += [run_of("near_far", softmax - gap + noise[seed], seed) for seed in range(3)]
    (verdict,) = imdb.verdicts(runs)
    assert verdict.outcome == outcome, verdict
    lacks = missing(runs, "imdb", ["softmax"])
    assert (outcome == "inconclusive") == bool(lacks) and all("80.0 %, chosen for a task" in told for told in lacks)
