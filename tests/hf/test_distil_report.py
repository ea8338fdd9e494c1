"""The command's work from beginning to end, on a tiny encoder with a vocabulary of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel, BertTokenizer

from lln.hf.distil_report import Settings, compare_classifiers, run, shuffled_texts
from tests.hf.models import spread_out

WORDS = ("good", "bad", "film", "plot", "the", "a", "was", "very")


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    folder = tmp_path / "encoder"
    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    spread_out(BertModel(config)).save_pretrained(folder)
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


def test_a_run_measures_and_saves(encoder: Path, texts: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    settings = _settings(encoder, texts, tmp_path, classify=16)
    found = run(settings, lambda _: None)
    assert found["steps"] == {"layers": 8, "end_to_end": 4}
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


def test_texts_are_drawn_at_random_from_a_sorted_file(encoder: Path, texts: Path) -> None:
    tokenizer = BertTokenizer.from_pretrained(encoder)
    long, short = shuffled_texts(texts, tokenizer, 4, 128)
    assert len(long) == len(short) == 4
    assert {text.split()[0] for text in long + short} == {"good", "bad"}


def test_texts_that_do_not_fit_are_refused(encoder: Path, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs texts of 256 tokens and of at most 85"):
        run(_settings(encoder, texts, tmp_path, max_length=256), lambda _: None)
