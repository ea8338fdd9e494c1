"""The command's work from beginning to end, on a tiny encoder with a vocabulary of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lln.hf.distillation.report import Settings, compare_classifiers, run
from tests.hf.models import spread_out

WORDS = ("good", "bad", "film", "plot", "the", "a", "was", "very")


VOCABULARY = ["[PAD]", "[UNK]", *WORDS]
SHAPE = {"vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return _saved(BertModel(BertConfig(**SHAPE, intermediate_size=48)), tmp_path / "encoder")


@pytest.fixture
def causal(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return _saved(LlamaForCausalLM(LlamaConfig(**SHAPE, intermediate_size=48, pad_token_id=0)), tmp_path / "causal")


def _saved(model: Any, folder: Path) -> Path:
    folder.mkdir()
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    spread_out(model).save_pretrained(folder)
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Sixteen texts, long and short in turn, labelled by whether they call the film good; sorted by label."""
    rows = []
    generator = torch.Generator().manual_seed(0)
    for label in (0, 1):
        for i in range(8):
            length = 200 if i % 2 else 20
            chosen = torch.randint(2, len(WORDS), (length,), generator=generator)
            rows.append({"text": " ".join([WORDS[1 - label], *(WORDS[j] for j in chosen)]), "label": label})
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def _settings(encoder: Path, texts: Path, tmp_path: Path, **options: Any) -> Settings:
    given: dict[str, Any] = {"steps": 12, "texts": 8, "test_texts": 4, "max_length": 128, **options}
    return Settings(model=str(encoder), data=texts, test_data=texts, out=tmp_path / "out", **given)


def test_larger_blocks_are_saved_and_timed_against_plain_ones(encoder: Path, texts: Path, tmp_path: Path) -> None:
    found = run(_settings(encoder, texts, tmp_path, block_size=96), lambda _: None)
    assert found["block_size"] == 96
    assert json.loads((tmp_path / "out" / "config.json").read_text())["lln"]["block_size"] == 96
    assert found["time"]["ratio_to_plain"].keys() == {"original", "plain", "converted", "distilled"}
    smaller = run(_settings(encoder, texts, tmp_path / "smaller", block_size=8), lambda _: None)
    cosines = [x["converted"]["short"]["cosine"] for x in (found, smaller)]
    assert (
        cosines[0] == pytest.approx(1.0, abs=1e-6) and cosines[0] > cosines[1]
    )  # a block holds any of the short texts


def test_a_run_measures_and_saves(encoder: Path, texts: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    settings = _settings(encoder, texts, tmp_path, classify=16)
    found = run(settings, lambda _: None)
    assert found["steps"] == {"layers": 4, "end_to_end": 8} and found["cpu_seconds"] > 0
    assert found["tested_on"] == {"long": 4, "short": 4}
    assert len(found["distilled"]["error_per_layer"]) == 2
    assert sum(found["distilled"]["error_per_layer"]) < sum(found["converted"]["error_per_layer"])
    assert 0.5 < found["distilled"]["long"]["cosine"] <= 1.0
    classifier = compare_classifiers(settings)
    assert classifier["train"] == 16 and set(classifier["accuracy"]) == {"original", "distilled"}
    json.dumps(found)
    assert AutoModel.from_pretrained(tmp_path / "out").config.lln["layers"][0]["maps"]


def test_a_finished_run_is_only_measured_again(encoder: Path, texts: Path, tmp_path: Path) -> None:
    settings = _settings(encoder, texts, tmp_path)
    first, second = run(settings, lambda _: None), run(settings, lambda _: None)
    assert first["distilled"] == second["distilled"]


def test_a_causal_model_is_measured_by_perplexity_and_layer_by_layer(causal: Path, texts: Path, tmp_path: Path) -> None:
    found = run(_settings(causal, texts, tmp_path, join=700, layer_texts=2), lambda _: None)
    assert set(found["tested_on"]) == {"long"}  # lines are joined: nothing short is left
    before = found["converted"]["long"]["perplexity_before"]
    assert found["distilled"]["long"]["perplexity_before"] == before
    closer = [abs(found[name]["long"]["perplexity"] - before) for name in ("converted", "distilled")]
    assert closer[1] < closer[0]
    layers = found["converted"]["layer_by_layer"]
    assert len(layers["only"]) == len(layers["up_to"]) == len(found["converted"]["first_token_weight"]) == 2
    json.dumps(found)
