"""The conversion report, on tiny models, through the command line."""

import copy
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import lln.hf
from lln.hf.conversion.closeness import Closeness
from lln.hf.conversion.measure import perplexity, similarity
from lln.hf.conversion.text_file import TextFile
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

    model = make(family, "sdpa")
    del model.config.lln
    model.save_pretrained(tmp_path / "model")
    _tokenizer().save_pretrained(tmp_path / "model")
    arguments = [
        str(tmp_path / "model"),
        "--data",
        str(_texts(tmp_path)),
        "--out",
        str(tmp_path / "out"),
        "--no-memory",
    ]
    arguments += ["--texts", "2", "--test-texts", "3", "--max-length", "32", "--block-size", "8", "--distil", "6"]
    ran = run(*arguments)
    assert ran.exit_code == 0, ran.output
    result = json.loads((tmp_path / "out" / "convert.json").read_text())
    assert set(result["converted"]) == {"long", "short"} and result["time"][0]["ratio"]["original"] == 1.0
    expected = {"bert": {"cosine", "correlation_of_pairs"}, "llama": {"perplexity", "perplexity_before"}}[family]
    assert set(result["converted"]["long"]) == set(result["distilled"]["long"]) == expected
    assert result["calibration"] == {"long": 2, "short": 2, "max_length": 32}
    assert result["distilled"] != result["converted"]
    assert AutoModel.from_pretrained(tmp_path / "out").config._attn_implementation == "lln_diag"


def run(*arguments: Any) -> Any:
    from typer.testing import CliRunner

    from lln_cli.convert import convert

    app = typer.Typer()
    app.command()(convert)
    return CliRunner().invoke(app, [str(x) for x in arguments], env={"COLUMNS": "200"})


def test_a_ready_made_file_is_measured_as_the_model_it_makes(tmp_path: Path) -> None:
    base, texts = make("bert", "sdpa"), _texts(tmp_path)
    del base.config.lln
    base.save_pretrained(tmp_path / "model")
    _tokenizer().save_pretrained(tmp_path / "model")
    made = lln.hf.convert(copy.deepcopy(base), "lln_near_far", [inputs("bert")], block_size=8, first_tokens=1)
    file = lln.hf.save_conversion(made, base, tmp_path / "file.safetensors")
    ran = run(
        tmp_path / "model", "--weights", file, "--test-data", texts, "--out", tmp_path / "out", "--test-texts", 3,
        "--max-length", 32,
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    result = json.loads((tmp_path / "out" / "convert.json").read_text())
    assert result["weights"] == {"file": "file.safetensors", "bytes": file.stat().st_size}
    assert (result["attention"], result["block_size"], result["first_tokens"]) == ("lln_near_far", 8, 1)
    groups = TextFile(texts, 32).batches(base, _tokenizer(), 3, batch_size=8)
    wanted = Closeness(base.eval(), groups)(made.eval())
    assert result["tested_on"] == {"long": 3, "short": 3} and result["calibration"] == {"max_length": 32}
    for group, measures in wanted.items():
        assert result["converted"][group] == pytest.approx(measures, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give --data to calibrate on, or --weights"),
        (("--weights", "FILE"), "give --data to calibrate on, or --weights and, to measure on, --test-data"),
        (("--weights", "FILE", "--data", "FILE"), "leave out --data"),
        (("--weights", "FILE", "--test-data", "FILE", "--neighbours", "1"), "leave out --neighbours"),
    ],
)
def test_a_ready_made_file_takes_the_place_of_data_and_options(
    arguments: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    (tmp_path / "FILE").write_text("")
    ran = run("model", "--out", tmp_path / "out", *(tmp_path / x if x == "FILE" else x for x in arguments))
    assert ran.exit_code == 2 and told in " ".join(ran.output.split()), ran.output


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
