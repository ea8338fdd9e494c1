"""Four tasks. Each takes embeddings or losses of one model and gives a few figures, in a fixed order.

    sts         lines {"first", "second", "score"}: correlation of cosine and score over pairs
    retrieval   lines {"query", "text"}: the place of a query's own text among the texts of all, by cosine
    classify    lines {"text", "label"}: a logistic regression on standardised embeddings: one half fits it, one tests it
    perplexity  texts, one a line or lines {"text"}: exp of the mean loss of a token, by its position

Embeddings are hidden states averaged over the tokens of a text, of length 1, as sentence-transformers has them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.hf.conversion.text_file import TextFile
from lln.hf.distillation.classify import classify as probe
from lln_lab.bench.token_losses import losses
from lln_lab.evaluate.files import examples

Embed = Callable[[list[str]], Tensor]
FEW_TEXTS = 8  # for perplexity, unless asked for more
FIRST_POSITIONS = 64  # the first stretch of positions; each further one is twice as long as all before


@dataclass(frozen=True)
class Asked:
    """A task and its file."""

    task: str
    path: Path
    count: int = 0  # examples, chosen at random; 0: all
    max_length: int = 512
    join: int = 0  # perplexity: lines are joined until a text has so many characters
    seed: int = 0


def sts(asked: Asked, embed: Embed) -> dict[str, float]:
    """Spearman's and Pearson's correlation."""
    pairs = examples(asked.path, ("first", "second", "score"), asked.count, asked.seed)
    first, second = (embed([str(pair[name]) for pair in pairs]) for name in ("first", "second"))
    cosine = (first * second).sum(-1).double()
    score = torch.tensor([float(pair["score"]) for pair in pairs], dtype=torch.float64)
    if not (score != score[0]).any():
        raise ValueError(f"{asked.path}: every pair has the score {float(score[0])}, so nothing correlates with it")
    return {"spearman": correlation(ranks(cosine), ranks(score)), "pearson": correlation(cosine, score)}


def retrieval(asked: Asked, embed: Embed) -> dict[str, float]:
    """How often the own text is first, among the first ten, and the mean of 1 / its place."""
    pairs = examples(asked.path, ("query", "text"), asked.count, asked.seed)
    queries, texts = (embed([str(pair[name]) for pair in pairs]) for name in ("query", "text"))
    scores = queries @ texts.T
    place = 1 + (scores > scores.diagonal()[:, None]).sum(dim=1).double()
    return {
        "recall at 1": float((place <= 1).double().mean()),
        "recall at 10": float((place <= 10).double().mean()),
        "mean reciprocal rank": float((1 / place).mean()),
    }


def classification(asked: Asked, embed: Embed) -> dict[str, float]:
    """Accuracy of the probe, in per cent."""
    rows = examples(asked.path, ("text", "label"), asked.count, asked.seed)
    names = sorted({str(row["label"]) for row in rows})
    if len(names) < 2:
        raise ValueError(f"{asked.path}: every text has the label {names[0]!r}, so there is nothing to tell apart")
    labels = torch.tensor([names.index(str(row["label"])) for row in rows])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(asked.seed))
    found, half = embed([str(row["text"]) for row in rows])[order], len(rows) // 2
    labels, found = labels[order], standardised(found, half)
    return {"accuracy": probe((found[:half], labels[:half]), (found[half:], labels[half:]), asked.seed)}


def perplexity(asked: Asked, model: Any, tokenizer: Any) -> dict[str, float]:
    """Of the tokens in each stretch of positions, and of all."""
    file = TextFile(asked.path, asked.max_length, join=asked.join, seed=asked.seed)
    batches = file.batches(model, tokenizer, asked.count or FEW_TEXTS, batch_size=1).get("long")
    if not batches:
        raise ValueError(
            f"{asked.path} has no text of {asked.max_length} tokens: join lines, or ask for a shorter length"
        )
    found = losses(model, batches)
    ends, figures = [FIRST_POSITIONS], {}
    while ends[-1] < found.shape[1]:
        ends.append(2 * ends[-1])
    for start, end in zip([0, *ends], ends, strict=False):
        part = found[:, start:end]
        figures[f"positions {start + 1} to {min(end, found.shape[1])}"] = float(part.mean().exp())
    return {"all": float(found.mean().exp()), **figures}


def standardised(x: Tensor, half: int) -> Tensor:
    """Features about their mean and in units of their spread over the first half.

    Texts of one kind have nearly the same embedding; a regression with a penalty would see the mean and little else.
    """
    spread, mean = torch.std_mean(x[:half].double(), dim=0)
    return ((x.double() - mean) / spread.clamp_min(1e-12)).float()


def ranks(x: Tensor) -> Tensor:
    """Places in ascending order; equals share the mean of theirs."""
    smaller, equal = (x[None] < x[:, None]).sum(dim=1), (x[None] == x[:, None]).sum(dim=1)
    return smaller.double() + (equal.double() - 1) / 2


def correlation(x: Tensor, y: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


OF_EMBEDDINGS: dict[str, Callable[[Asked, Embed], dict[str, float]]] = {
    "sts": sts,
    "retrieval": retrieval,
    "classify": classification,
}
TASKS = (*OF_EMBEDDINGS, "perplexity")
