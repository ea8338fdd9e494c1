"""The measurements of near-far attention, on a tiny random encoder and few draws."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, BertConfig, PreTrainedTokenizerFast

from lln_lab.bench import near_far, near_far_terms
from lln_lab.bench.near_far_terms_plot import draw
from lln_lab.experiments.figure import save


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, **{c: i + 2 for i, c in enumerate("abcdef")}}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=8,
        max_position_embeddings=512, initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    lines = []
    for length in (600, 600, 600, 600, 150, 150, 150, 150):
        lines.append(" ".join("abcdef"[i] for i in torch.randint(6, (length,), generator=generator).tolist()))
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    return tmp_path / "texts.txt"


def test_fitted_weights_leave_less_error_than_neutral_ones_and_the_file_has_every_row(
    encoder: Path, texts: Path, tmp_path: Path
) -> None:
    plan = near_far.Plan(str(encoder), str(texts), str(texts), texts=1, test_texts=2)
    near_far.run(plan, tmp_path / "found.json", lambda what: None)
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert len(rows) == sum(len(bases) for _, bases in near_far.ROWS)
    errors = {row["basis"]: row["error_of_each_layer"] for row in rows if row["near"] == {"block_size": 64}}
    for fitted, neutral in zip(errors[near_far.ALL], errors[near_far.NOT_FITTED], strict=True):
        assert fitted <= neutral
    assert all(0 < row["long"]["cosine"] <= 1.00001 for row in rows)


def test_the_model_is_as_it_was_afterwards(encoder: Path) -> None:
    model = AutoModel.from_pretrained(encoder).eval()
    ids, before = torch.arange(8)[None], model.config._attn_implementation
    with torch.no_grad():
        expected = model(ids).last_hidden_state
        with near_far.attention_of(model, near_far.Switch({})):
            torch.testing.assert_close(model(ids).last_hidden_state, expected)
        assert model.config._attn_implementation == before
        assert torch.equal(model(ids).last_hidden_state, expected)


def test_the_slope_is_most_of_the_output_of_gaussian_inputs(encoder: Path, texts: Path, tmp_path: Path) -> None:
    plan = near_far_terms.Plan(lengths=(256, 512), counts=(64,), model=str(encoder), data=str(texts), texts=1)
    result = near_far_terms.run(plan, lambda what: None)
    for row in result["gaussian"]:
        assert row["error"]["mean and slope by mass"] < row["error"]["mean by mass"]
    assert len(result["layers"]) == 2
    assert save(draw, result, tmp_path / "terms.png").stat().st_size > 1000
