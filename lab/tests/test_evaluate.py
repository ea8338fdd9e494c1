"""`lln evaluate`: figures that can be told by hand, an original and its conversion side by side, and mistakes in words."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from lln.hf import convert
from lln_cli.app import app
from lln_lab.evaluate.tasks import Asked, classification, ranks, retrieval, sts

WORDS = ["[PAD]", "[UNK]", "cat", "dog", "sat", "ran", "on", "the", "mat", "road"]
SIZES: dict[str, Any] = {"vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def on_a_circle(texts: list[str]) -> Tensor:
    """A text that is a number of degrees, as a point."""
    angle = torch.tensor([float(text) for text in texts]).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def test_correlation_is_one_where_cosines_are_in_the_order_of_scores(tmp_path: Path) -> None:
    rows = [{"first": "0", "second": str(angle), "score": -angle} for angle in (0, 10, 50, 120)]
    found = sts(Asked("sts", write(tmp_path / "a", rows)), on_a_circle)
    assert found["spearman"] == pytest.approx(1) and 0.9 < found["pearson"] < 1
    torch.testing.assert_close(ranks(torch.tensor([3.0, 1.0, 3.0])), torch.tensor([1.5, 0.0, 1.5]).double())


def test_the_place_of_a_querys_own_text(tmp_path: Path) -> None:
    pairs = [(0, 1), (90, 91), (180, 181), (270, 2)]  # the last query has its own text at 92 degrees: 3rd of 4
    rows = [{"query": str(query), "text": str(text)} for query, text in pairs]
    found = retrieval(Asked("retrieval", write(tmp_path / "a", rows)), on_a_circle)
    assert found["recall at 1"] == 0.75 and found["recall at 10"] == 1
    assert found["mean reciprocal rank"] == pytest.approx((3 + 1 / 3) / 4)


def test_a_probe_tells_two_sides_apart(tmp_path: Path) -> None:
    rows = [{"text": str(angle), "label": "left" if 90 < angle < 270 else "right"} for angle in range(0, 360, 7)]
    assert classification(Asked("classify", write(tmp_path / "a", rows)), on_a_circle)["accuracy"] > 90


def test_a_probe_tells_sides_apart_that_are_almost_one(tmp_path: Path) -> None:
    """Embeddings of texts of one kind differ by little; a penalty on weights must not hide it."""
    rows = [{"text": str(angle), "label": "left" if 90 < angle < 270 else "right"} for angle in range(0, 360, 7)]
    asked = Asked("classify", write(tmp_path / "a", rows))
    assert classification(asked, lambda texts: 1 + 1e-4 * on_a_circle(texts))["accuracy"] > 90


def saved(folder: Path, model: Any) -> str:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


def pair(tmp_path: Path, model: Any) -> list[str]:
    """The model in a folder, and its conversion in another."""
    original = saved(tmp_path / "original", model)
    return [
        original,
        saved(tmp_path / "converted", convert(model, "lln_diag", [torch.randint(2, 10, (2, 20))], block_size=4)),
    ]


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["evaluate", *arguments], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def test_an_encoder_and_its_conversion_side_by_side(tmp_path: Path) -> None:
    folders = pair(tmp_path, BertModel(BertConfig(**SIZES, intermediate_size=48)).eval())
    texts = [f"the {a} {b} on the {c}" for a in ("cat", "dog") for b in ("sat", "ran") for c in ("mat", "road")]
    rows = [
        {"first": x, "second": y, "score": x[4] == y[4], "query": x, "text": y, "label": x[4]}
        for x, y in itertools.pairwise(texts)
    ]
    file = write(tmp_path / "all.jsonl", rows)
    out = tmp_path / "evaluate.json"
    text = invoke(
        *folders,
        *(x for task in ("sts", "retrieval", "classify") for x in ("--tasks", f"{task}:{file}")),
        "--out",
        str(out),
    )
    found = json.loads(out.read_text())
    assert [row["task"] for row in found["rows"]] == ["sts"] * 2 + ["retrieval"] * 3 + ["classify"]
    assert all(list(row["models"]) == ["original", "converted"] for row in found["rows"]) and "converted" in text


def test_perplexity_by_position(tmp_path: Path) -> None:
    model = LlamaForCausalLM(
        LlamaConfig(**SIZES, intermediate_size=48, pad_token_id=0, bos_token_id=1, eos_token_id=1)
    ).eval()
    folders = pair(tmp_path, model)
    (tmp_path / "text.txt").write_text("\n".join(" ".join(["the cat sat on the mat"] * 30) for _ in range(5)))
    out = tmp_path / "evaluate.json"
    invoke(
        *folders,
        "--tasks",
        f"perplexity:{tmp_path / 'text.txt'}",
        "--max-length",
        "150",
        "--count",
        "2",
        "--out",
        str(out),
    )
    rows = json.loads(out.read_text())["rows"]
    assert [row["figure"] for row in rows] == [
        "all",
        "positions 1 to 64",
        "positions 65 to 128",
        "positions 129 to 149",
    ]
    for name in ("original", "converted"):
        log = [torch.tensor(row["models"][name]).log() for row in rows]
        torch.testing.assert_close(log[0], (64 * log[1] + 64 * log[2] + 21 * log[3]) / 149)


@pytest.mark.parametrize(
    "task, rows, told",
    [
        ("sts", [{"first": "a", "second": "b"}] * 4, "line 1 has no field 'score'"),
        ("sts", [{"first": "a", "second": "b", "score": 1}] * 4, "every pair has the score 1.0"),
        ("classify", [{"text": "a", "label": 1}] * 4, "every text has the label '1'"),
        ("retrieval", [{"query": "a", "text": "b"}] * 3, "has 3 examples"),
        ("perplexity", [{"text": "a"}] * 4, "perplexity needs a causal model"),
        ("taste", [], "tasks are sts, retrieval, classify, perplexity"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, task: str, rows: list[dict[str, Any]], told: str) -> None:
    folder = saved(tmp_path / "model", BertModel(BertConfig(**SIZES, intermediate_size=48)).eval())
    file = write(tmp_path / "rows.jsonl", rows)
    result = CliRunner().invoke(app, ["evaluate", folder, "--tasks", f"{task}:{file}"], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and told in " ".join(result.output.replace("│", " ").split()), result.output
