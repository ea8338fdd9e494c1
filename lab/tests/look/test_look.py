"""`lln look`: the maps are averages of the model's own attention, and mistakes end in words."""

import json
import math
from pathlib import Path

import numpy
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, LlamaConfig, PreTrainedTokenizerFast
from typer.testing import CliRunner

from lln.instruments import SoftmaxMatrix
from lln_cli.app import app
from lln_lab.experiments.maps import Layer, attention_maps, averaged
from lln_lab.look.model import layers_of
from lln_lab.report.codes import decode

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 40}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{f"w{i}": i + 2 for i in range(38)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    AutoModel.from_config(BertConfig(**SIZES, max_position_embeddings=512)).save_pretrained(folder)
    return folder


def text(count: int) -> str:
    return " ".join(f"w{(7 * i) % 38}" for i in range(count))


def test_averages_are_those_of_the_whole_matrix() -> None:
    q, k = torch.randn(2, 1, 3, 50, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = SoftmaxMatrix(q, k)
    dense = matrix.dense()[0]
    found, bits = averaged(matrix, 7)
    assert found.shape == (3, 8, 8)
    torch.testing.assert_close(found[:, 1, 2], dense[:, 7:14, 14:21].sum(-1).mean(-1))
    torch.testing.assert_close(found[:, 7, 7], dense[:, 49:, 49:].sum(-1).mean(-1))  # the last cell is smaller
    torch.testing.assert_close(found.sum(-1), torch.ones(3, 8, dtype=torch.float64))
    torch.testing.assert_close(bits, -(dense * dense.log2()).sum(-1).mean(-1))


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"mask": torch.ones(1, 1, 40, 40).tril().bool()}], ids=str
)
def test_the_maps_of_some_heads_are_those_of_all(options: dict[str, object]) -> None:
    q, k = torch.randn(2, 1, 4, 40, 8, generator=torch.Generator().manual_seed(0))
    layer = Layer(SoftmaxMatrix(q, k, **options), q, k, 0)  # type: ignore[arg-type]
    assert layer.of_heads([3, 1]).q.shape[1] == 2
    every = {(one["label"], one["head"]): one for one in attention_maps([layer], ["x"] * 40)}
    for one in attention_maps([layer], ["x"] * 40, heads=[3, 1]):
        same = every[one["label"], one["head"]]
        assert one["entropy"] == pytest.approx(same["entropy"], abs=2e-4) and one["gap"] == same["gap"]
        ours, whole = (decode(x["codes"], 40, 40) for x in (one, same))
        numpy.testing.assert_allclose(ours, whole, rtol=0.02, atol=1e-6)


def test_long_inputs_are_averaged_until_they_fit() -> None:
    q, k = torch.randn(2, 1, 1, 2048, 8, generator=torch.Generator().manual_seed(0))
    found = attention_maps([Layer.of(0, q, k)], [str(i) for i in range(2048)])
    assert {one["label"] for one in found} == {"softmax", "lln", "lln_diag"}
    for one in found:
        assert one["cell"] == 4 and one["rows"] == 512 and one["length"] == 2048 and one["row_sum"] == 1.0
        numpy.testing.assert_allclose(decode(one["codes"], 512, 512).sum(1), 1, rtol=1e-3)
        assert 0 < one["entropy"] < math.log2(2048) and 0 < one["gap"] < 1
    assert [one["block_size"] for one in found] == [None, None, 64]


def test_what_is_seen_is_the_model_s_own_attention(encoder: Path) -> None:
    model = AutoModel.from_pretrained(encoder, attn_implementation="eager").eval()
    ids = torch.tensor([[2 + i % 38 for i in range(30)]])
    layers = layers_of(AutoModel.from_pretrained(encoder), {"input_ids": ids})
    with torch.no_grad():
        expected = model(ids, output_attentions=True).attentions
    assert len(layers) == len(expected) == 2
    for layer, matrix in zip(layers, expected, strict=True):
        torch.testing.assert_close(layer.softmax.dense(), matrix, rtol=1e-4, atol=1e-6)


def test_a_causal_model_looks_back_only() -> None:
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))
    (layer, _) = layers_of(model, {"input_ids": torch.arange(2, 32)[None]})
    for matrix in layer.kinds(8).values():
        dense = matrix.dense()
        assert (dense.triu(1) == 0).all()
        torch.testing.assert_close(dense.sum(-1), torch.ones_like(dense[..., 0]))


def test_the_command_writes_a_page(encoder: Path, tmp_path: Path) -> None:
    arguments = ["look", str(encoder), text(120), "--out", str(tmp_path), "--layer", "1", "--block-size", "16"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "look.json").read_text())
    assert {one["layer"] for one in found["maps"]} == {1} and len(found["maps"]) == 12
    assert found["maps"][0]["text"][:2] == ["w0", "w7"]
    page = (tmp_path / "look.html").read_text()
    assert "tiny-bert reads 120 tokens" in page and "entropy of LLN+Diag" in page
    assert str(tmp_path) not in json.dumps({**found, "provenance": None})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give either a text or --file"),
        (("w1",), "1 token(s)"),
        (("w1 w2 w3", "--layer", "9"), "there is no layer 9: the model has layers 0 to 1"),
        (("w1 w2 w3", "--head", "9"), "there is no head 9"),
        (("--file", "{damaged}"), "is not UTF-8 text"),
        (("w1", "--file", "nowhere.txt"), "does not exist"),
    ],
)
def test_mistakes_end_in_words(encoder: Path, tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    damaged = tmp_path / "damaged.txt"
    damaged.write_bytes(b"\xff\xfe\x00\xd8")
    given = [one.format(damaged=damaged) for one in arguments]
    result = CliRunner().invoke(app, ["look", str(encoder), *given, "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and told in " ".join(result.output.split()), result.output


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["look", str(tmp_path), "w1 w2", "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and "Traceback" not in result.output
