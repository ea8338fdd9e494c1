"""What a linear attention costs in the end: a logistic regression on embeddings, before and after."""

import json
import lzma
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.hf.conversion.batches import batches_of
from lln.hf.conversion.measure import embeddings
from lln.tensor_files import read_tensors, write_tensors

try:
    from sklearn.linear_model import LogisticRegression
except ImportError as missing:
    raise ImportError("a logistic regression on embeddings needs scikit-learn: pip install scikit-learn") from missing


def labelled_texts(path: Path, count: int, seed: int = 0) -> tuple[list[str], Tensor]:
    """`count` random texts of JSON lines with the fields `text` and `label` (.xz is unpacked), and their labels."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as lines:
        rows = [json.loads(line) for line in lines]
    if any("label" not in row for row in rows[:1]):
        raise ValueError(f"{path} has no field 'label': a classifier needs one")
    chosen = random.Random(seed).sample(rows, min(count, len(rows)))
    return [row["text"] for row in chosen], torch.tensor([int(row["label"]) for row in chosen])


def embed(model: Any, tokenizer: Any, texts: list[str], max_length: int) -> Tensor:
    """(texts, width), in the given order; computed in batches of like length."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    batches = batches_of([texts[i] for i in order], model, tokenizer, max_length, batch_size=8)
    found = embeddings(model, [{k: b[k] for k in ("input_ids", "attention_mask")} for b in batches])
    return found[torch.tensor(order).argsort()]


def labelled_embeddings(
    model: Any, tokenizer: Any, path: Path, count: int, max_length: int, keep: Path | None
) -> tuple[Tensor, Tensor]:
    """Embeddings and labels of `count` texts of `path`; with `keep`, kept in a file whose name begins like that."""
    file = None if keep is None else keep.with_name(f"{keep.name}_{path.name}_{count}_{max_length}.safetensors")
    if file is not None and file.exists():
        _, found = read_tensors(file)
        return found["embeddings"], found["labels"]
    texts, labels = labelled_texts(path, count)
    result = embed(model, tokenizer, texts, max_length)
    if file is not None:
        write_tensors(file, {"embeddings": result, "labels": labels}, {})
    return result, labels


def classify(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], seed: int = 0) -> float:
    """Accuracy in percent of a logistic regression, fitted to (embeddings, labels) and tested on others."""
    fitted = LogisticRegression(max_iter=2000, random_state=seed).fit(train[0].numpy(), train[1].numpy())
    return 100 * float(fitted.score(test[0].numpy(), test[1].numpy()))
