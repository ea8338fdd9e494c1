"""How close a converted model is to the original, and what it costs: embeddings, perplexity, time and memory."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.measuring.memory import peak_extra_bytes
from lln.measuring.timing import interleaved

Batch = dict[str, Tensor]


@torch.no_grad()
def embeddings(model: Any, batches: list[Batch]) -> Tensor:
    """(texts, width): hidden states averaged over the tokens that count, of length 1."""
    parts = []
    for batch in batches:
        hidden = model(**batch).last_hidden_state
        counts = batch["attention_mask"][..., None].to(hidden.dtype)
        parts.append((hidden * counts).sum(1) / counts.sum(1))
    return F.normalize(torch.cat(parts), dim=-1)


def similarity(original: Tensor, converted: Tensor) -> dict[str, float]:
    """Mean cosine of each text's embeddings, and the correlation of the similarities of all pairs of texts."""
    result = {"cosine": float((original * converted).sum(-1).mean())}
    if len(original) > 2:
        rows, columns = torch.triu_indices(len(original), len(original), 1)
        pairs = torch.stack([(x @ x.T)[rows, columns] for x in (original, converted)])
        result["correlation_of_pairs"] = float(torch.corrcoef(pairs)[0, 1])
    return result


@torch.no_grad()
def perplexity(model: Any, batches: list[Batch]) -> float:
    """exp of the mean negative log likelihood of a token."""
    loss, count = 0.0, 0
    for batch in batches:
        logits = model(**batch, use_cache=False).logits[:, :-1].flatten(0, 1)
        wanted = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)[:, 1:].flatten()
        loss += float(F.cross_entropy(logits.float(), wanted, ignore_index=-100, reduction="sum"))
        count += int((wanted != -100).sum())
    return float(torch.tensor(loss / max(count, 1)).exp())


def time_against_length(models: dict[str, Any], lengths: list[int], batch: int = 2, repeats: int = 5) -> list[dict]:
    """Seconds of a forward pass of each model at each length, interleaved, and ratios to the first."""
    rows = []
    for length in lengths:
        timings = interleaved({n: _forward(m, batch, length) for n, m in models.items()}, repeats=repeats)
        first = next(iter(timings.values())).median
        rows.append(
            {
                "length": length,
                "batch": batch,
                "seconds": {n: t.median for n, t in timings.items()},
                "ratio": {n: t.median / first for n, t in timings.items()},
            }
        )
    return rows


def memory_against_length(paths: dict[str, str], lengths: list[int], batch: int = 2) -> list[dict]:
    """Peak memory of a forward pass beyond what is there before it, each in a process of its own."""
    return [
        {
            "length": length,
            "batch": batch,
            "bytes": {n: peak_extra_bytes(_load_forward, p, batch, length) for n, p in paths.items()},
        }
        for length in lengths
    ]


def _load_forward(path: str, batch: int, length: int) -> Callable[[], Any]:
    from transformers import AutoModel

    import lln.hf  # noqa: F401

    return _forward(AutoModel.from_pretrained(path).eval(), batch, length)


def _forward(model: Any, batch: int, length: int) -> Callable[[], Any]:
    ids = torch.randint(5, model.config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))

    def call() -> Any:
        with torch.no_grad():
            return model(input_ids=ids)

    return call
