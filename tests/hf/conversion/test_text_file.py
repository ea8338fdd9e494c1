"""Texts of a file: what is long or short, a random choice, batches of like size."""

import json
import lzma
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lln.hf.conversion.text_file import TextFile
from tests.hf.models import make

LENGTHS = [40, 8, 50, 9, 64, 7, 45, 10, 20]  # of 32 tokens: long, short, ..., neither


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


@pytest.fixture
def file(tmp_path: Path) -> TextFile:
    path = tmp_path / "texts.jsonl.xz"
    with lzma.open(path, "wt") as lines:
        for length in LENGTHS:
            lines.write(json.dumps({"text": " ".join(["a"] * length)}) + "\n")
    return TextFile(path, max_length=32)


def sizes(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def test_long_texts_fill_the_length_and_short_ones_at_most_a_third_of_it(file: TextFile) -> None:
    long, short = file.choose(tokenizer(), 9)
    assert sorted(sizes(long)) == [40, 45, 50, 64] and sorted(sizes(short)) == [7, 8, 9, 10]


def test_the_choice_is_random_and_follows_the_seed(file: TextFile) -> None:
    chosen = [sizes(TextFile(file.path, 32, seed=seed).choose(tokenizer(), 2)[0]) for seed in range(8)]
    assert len({tuple(x) for x in chosen}) > 1
    assert chosen[0] == sizes(TextFile(file.path, 32, seed=0).choose(tokenizer(), 2)[0])


def test_what_is_measured_on_was_not_trained_on_even_in_one_file(file: TextFile) -> None:
    same = file.path.parent / ".." / file.path.parent.name / file.path.name  # by another path
    trained, tested = file.leaving(same, 2).choose(tokenizer(), 9), file.to_measure_on(same).choose(tokenizer(), 2)
    for a, b in zip(trained, tested, strict=True):
        assert len(a) == len(b) == 2 and not set(a) & set(b)
    with pytest.raises(ValueError, match="besides the 9 of each to measure on"):
        file.leaving(same, 9).batches(make("bert"), tokenizer(), 2)
    other = file.path.with_name("other.jsonl.xz")
    assert file.to_measure_on(other) == TextFile(other, max_length=32)


def test_paragraphs_are_joined_to_longer_texts(tmp_path: Path) -> None:
    path = tmp_path / "paragraphs.txt"
    path.write_text("a a a\n\n b b b \na a a\nb\n")
    assert list(TextFile(path).read()) == ["a a a", "b b b", "a a a", "b"]
    assert list(TextFile(path, join=8).read()) == ["a a a\nb b b", "a a a\nb"]


def test_a_batch_of_short_texts_has_three_times_as_many(file: TextFile) -> None:
    found = file.batches(make("bert", "sdpa"), tokenizer(), 4, batch_size=1)
    assert [len(b["input_ids"]) for b in found["long"]] == [1, 1, 1, 1]
    assert [len(b["input_ids"]) for b in found["short"]] == [3, 1]
    assert found["short"][0]["attention_mask"].sum() < found["short"][0]["attention_mask"].numel()


def test_texts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "middling.txt"
    path.write_text("a a a a a a\n")
    with pytest.raises(ValueError, match=r"no text that fills 8 tokens and none of at most 2"):
        TextFile(path, max_length=8).batches(make("bert", "sdpa"), tokenizer(), 4)
