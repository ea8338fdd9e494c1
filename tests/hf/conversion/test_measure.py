"""The conversion report, on tiny models, through the command line."""

import json
import lzma
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lln.hf.conversion.measure import perplexity, similarity
from tests.hf.models import VOCABULARY, inputs, make

typer = pytest.importorskip("typer")


def _tokenizer() -> PreTrainedTokenizerFast:
    words = {"[PAD]": 0, "[UNK]": 1, **{f"w{i}": i for i in range(2, VOCABULARY)}}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


def _texts(folder: Path) -> Path:
    path = folder / "texts.jsonl.xz"
    lengths = [40, 8, 50, 9, 64, 7, 45, 10, 41, 6]  # five long and five short: two to calibrate on, three to measure on
    with lzma.open(path, "wt") as lines:
        for row, length in enumerate(lengths):
            words = torch.randint(2, VOCABULARY, (length,), generator=torch.Generator().manual_seed(row))
            lines.write(json.dumps({"text": " ".join(f"w{i}" for i in words)}) + "\n")
    return path


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_command_converts_saves_and_reports(family: str, tmp_path: Path) -> None:
    from transformers import AutoModel
    from typer.testing import CliRunner

    from lln_cli.convert import convert

    model = make(family, "sdpa")
    del model.config.lln
    model.save_pretrained(tmp_path / "model")
    _tokenizer().save_pretrained(tmp_path / "model")
    app = typer.Typer()
    app.command()(convert)
    arguments = [
        str(tmp_path / "model"),
        "--data",
        str(_texts(tmp_path)),
        "--out",
        str(tmp_path / "out"),
        "--no-memory",
    ]
    arguments += ["--texts", "2", "--test-texts", "3", "--max-length", "32", "--block-size", "8", "--distil", "6"]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    result = json.loads((tmp_path / "out" / "convert.json").read_text())
    assert set(result["converted"]) == {"long", "short"} and result["time"][0]["ratio"]["original"] == 1.0
    expected = {"bert": {"cosine", "correlation_of_pairs"}, "llama": {"perplexity", "perplexity_before"}}[family]
    assert set(result["converted"]["long"]) == set(result["distilled"]["long"]) == expected
    assert result["calibration"] == {"long": 2, "short": 2, "max_length": 32}
    assert result["distilled"] != result["converted"]
    assert AutoModel.from_pretrained(tmp_path / "out").config._attn_implementation == "lln_diag"


def test_similarity_of_a_thing_to_itself_is_one() -> None:
    x = torch.nn.functional.normalize(torch.randn(5, 8), dim=-1)
    assert similarity(x, x) == pytest.approx({"cosine": 1.0, "correlation_of_pairs": 1.0}, abs=1e-5)


def test_perplexity_ignores_padding() -> None:
    model = make("llama", "sdpa")
    ids = inputs("llama", batch=1, length=12)["input_ids"]
    plain = perplexity(model, [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}])
    padded = torch.cat([ids, torch.full((1, 4), 9)], 1)
    mask = torch.cat([torch.ones_like(ids), torch.zeros(1, 4, dtype=torch.long)], 1)
    assert perplexity(model, [{"input_ids": padded, "attention_mask": mask}]) == pytest.approx(plain, rel=1e-4)
