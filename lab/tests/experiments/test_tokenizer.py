"""The tokenizer of a run: trained once, whole or not at all, of one corpus, with RoBERTa's special tokens."""

import json
from pathlib import Path

import pytest

from lln_lab.experiments.masking import MERGES, ORIGIN, VOCABULARY, read_tokenizer, tokenizer_of

TEXTS = [f"words and words {i}" for i in range(50)]


def test_it_is_read_again_and_another_corpus_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    first = tokenizer_of(TEXTS, folder, 300)
    assert tokenizer_of(TEXTS, folder, 300).get_vocab() == first.get_vocab() == read_tokenizer(folder).get_vocab()
    for texts, size in ((TEXTS[:-1], 300), (TEXTS, 290)):
        with pytest.raises(ValueError, match="another corpus or size"):
            tokenizer_of(texts, folder, size)


def test_one_that_was_cut_short_is_trained_anew(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    tokenizer_of(TEXTS, folder, 300)
    merges = (folder / MERGES).read_text()
    (folder / MERGES).write_text("".join(merges.splitlines(keepends=True)[:3]))
    (folder / ORIGIN).unlink()  # it is renamed into place with the rest, so a run that was killed has none
    tokenizer_of(TEXTS, folder, 300)
    assert (folder / MERGES).read_text() == merges


def test_a_given_one_is_kept_with_the_run(tmp_path: Path) -> None:
    given = tmp_path / "given"
    wanted = tokenizer_of(TEXTS, given, 300)
    tokenizer_of(["other text"], tmp_path / "run", 300, given)
    assert read_tokenizer(tmp_path / "run").get_vocab() == wanted.get_vocab()


def test_one_without_robertas_special_tokens_is_refused(tmp_path: Path) -> None:
    given = tmp_path / "given"
    tokenizer_of(TEXTS, given, 300)
    vocabulary = json.loads((given / VOCABULARY).read_text())
    moved = {token: i - 5 for token, i in vocabulary.items() if i >= 5}
    (given / VOCABULARY).write_text(json.dumps(moved))
    with pytest.raises(ValueError, match="does not fit"):
        tokenizer_of(TEXTS, tmp_path / "run", 300, given)
    with pytest.raises(FileNotFoundError, match=r"vocab\.json and merges\.txt"):
        read_tokenizer(tmp_path / "nowhere")
