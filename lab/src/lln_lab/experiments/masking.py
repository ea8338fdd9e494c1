"""Masked-language-model samples: windows of a tokenized corpus with 15 % of the tokens hidden, as RoBERTa does it.

Of the hidden tokens 80 % become the mask, 10 % another token, 10 % stay. Their number is the same in every window, so
that the mean loss over processes is the mean loss of one.
"""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # ids 0 ... 4, RoBERTa's order
BEGIN, PADDING, END, UNKNOWN = 0, 1, 2, 3
HIDDEN = 0.15
VOCABULARY, MERGES, ORIGIN = "vocab.json", "merges.txt", "origin.txt"


def tokenizer_of(
    texts: Sequence[str], folder: Path, vocabulary: int, given: Path | None = None
) -> ByteLevelBPETokenizer:
    """A byte-level BPE: the one in `given` (RoBERTa's files), the one trained before in `folder`, or one trained now.

    It is kept in `folder`, written aside and renamed, with the checksum of what it came of: another corpus is refused.
    """
    origin = _checksum([(given / VOCABULARY).read_text(), (given / MERGES).read_text()]) if given else _checksum(texts)
    origin += f" {vocabulary}"
    if (folder / ORIGIN).exists():
        if (folder / ORIGIN).read_text() != origin:
            raise ValueError(
                f"{folder} holds a tokenizer for another corpus or size: choose another --out, or remove it"
            )
        return read_tokenizer(folder)
    if given is None:
        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(texts, vocab_size=vocabulary, special_tokens=SPECIAL, show_progress=False)
    else:
        tokenizer = read_tokenizer(given)
    aside = folder.with_name(folder.name + ".part")
    for old in (aside, folder):
        shutil.rmtree(old, ignore_errors=True)
    aside.mkdir(parents=True)
    tokenizer.save_model(str(aside))
    (aside / ORIGIN).write_text(origin)
    aside.rename(folder)
    return tokenizer


def read_tokenizer(folder: Path) -> ByteLevelBPETokenizer:
    """From the files of a byte-level BPE whose first tokens are RoBERTa's special ones."""
    if not ((folder / VOCABULARY).exists() and (folder / MERGES).exists()):
        raise FileNotFoundError(f"a tokenizer is a folder with {VOCABULARY} and {MERGES}; {folder} has none")
    tokenizer = ByteLevelBPETokenizer(str(folder / VOCABULARY), str(folder / MERGES))
    found = [tokenizer.token_to_id(token) for token in SPECIAL]
    if found[:-1] != [BEGIN, PADDING, END, UNKNOWN] or found[-1] is None:
        raise ValueError(
            f"{folder / VOCABULARY} has {dict(zip(SPECIAL, found, strict=True))}; RoBERTa's has 0 to 3 and the mask anywhere: "
            "a tokenizer without them, such as GPT-2's, does not fit"
        )
    tokenizer.add_special_tokens(SPECIAL)  # the files do not say which tokens are not to be split
    return tokenizer


def _checksum(texts: Sequence[str]) -> str:
    found = hashlib.sha256()
    for text in texts:
        found.update(text.encode() + b"\0")
    return found.hexdigest()


def windows(texts: Sequence[str], tokenizer: ByteLevelBPETokenizer, length: int) -> Tensor:
    """(windows, length): the documents one after the other, an end token after each; what is left over is dropped."""
    encoded = tokenizer.encode_batch(list(texts))
    tokens = torch.cat([torch.tensor([*document.ids, END]) for document in encoded])
    count = len(tokens) // (length - 1)
    if count == 0:
        raise ValueError(f"the corpus has {len(tokens)} tokens: too few for one window of {length}")
    rows = tokens[: count * (length - 1)].view(count, length - 1)
    return torch.cat([torch.full((count, 1), BEGIN), rows], dim=1)


class Masking:
    """A window and a generator -> input_ids and labels (-100 where nothing is asked)."""

    def __init__(self, tokenizer: ByteLevelBPETokenizer) -> None:
        self.vocabulary = tokenizer.get_vocab_size()
        self.mask = tokenizer.token_to_id("<mask>")

    def __call__(self, window: Tensor, generator: torch.Generator) -> dict[str, Any]:
        length = len(window)
        hidden = 1 + torch.randperm(length - 1, generator=generator)[: max(1, round(HIDDEN * length))]
        kind = torch.rand(len(hidden), generator=generator)
        other = torch.randint(len(SPECIAL), self.vocabulary, (len(hidden),), generator=generator)
        replaced = torch.where(kind < 0.8, self.mask, torch.where(kind < 0.9, other, window[hidden]))
        labels = torch.full_like(window, -100)
        labels[hidden] = window[hidden]
        inputs = window.clone()
        inputs[hidden] = replaced
        return {"input_ids": inputs, "labels": labels}
