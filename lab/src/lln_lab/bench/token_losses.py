"""Perplexity of a causal model beside its softmax original, token by token, with intervals from pairs.

Tokens of one text are not independent, so the unit is a stretch of `STRETCH` tokens: its mean loss under one model less that
under another. A 95 % interval is 1.96 standard errors of the mean over stretches.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.hf.conversion.measure import Batch

STRETCH = 64
FAR_STARTS = (1024, 4096)


class TokenLosses:
    """Measures softmax once, then any model against it and against the first model that was measured."""

    def __init__(self, original: Any, batches: list[Batch]) -> None:
        self.batches = batches
        self.original = losses(original, batches)
        self.first: Tensor | None = None

    @property
    def softmax(self) -> dict[str, Any]:
        return {name: perplexity(part) for name, part in parts(self.original).items()}

    def __call__(self, model: Any) -> dict[str, Any]:
        """Perplexity over all tokens and by position, its ratio to softmax's, and the log ratio to the first model's."""
        own = losses(model, self.batches)
        self.first = own if self.first is None else self.first
        found = {
            name: {
                "perplexity": perplexity(part),
                "ratio_to_softmax": perplexity(part) / perplexity(softmax),
                "log_ratio_to_softmax": interval(part - softmax),
                "log_ratio_to_first_row": interval(part - first),
            }
            for (name, part), softmax, first in zip(
                parts(own).items(), parts(self.original).values(), parts(self.first).values(), strict=True
            )
        }
        return {"by_position": found}


@torch.no_grad()
def losses(model: Any, batches: list[Batch]) -> Tensor:
    """Of the next token, in nats, (texts, N - 1); texts of one length."""
    found = []
    for batch in batches:
        logits, ids = model(**batch, use_cache=False).logits[:, :-1].float(), batch["input_ids"][:, 1:]
        found.append(F.cross_entropy(logits.transpose(1, 2), ids, reduction="none"))
    return torch.cat(found).double()


def parts(x: Tensor) -> dict[str, Tensor]:
    """All positions, those of the second half, and those from 1,024 and from 4,096 on, if there are any."""
    length = x.shape[1] + 1
    starts = sorted({length // 2, *(start for start in FAR_STARTS if start < length)})
    return {"all": x} | {f"from {start:,}": x[:, start - 1 :] for start in starts}


def perplexity(x: Tensor) -> float:
    return float(x.mean().exp())


def interval(difference: Tensor) -> dict[str, float]:
    """The mean over tokens and half the width of its 95 % interval."""
    stretches = torch.cat([part.mean(dim=1) for part in difference.split(STRETCH, dim=1) if part.shape[1] == STRETCH])
    error = stretches.std() / len(stretches) ** 0.5 if len(stretches) > 1 else torch.tensor(torch.nan)
    return {"mean": float(difference.mean()), "half_width": float(1.96 * error)}
