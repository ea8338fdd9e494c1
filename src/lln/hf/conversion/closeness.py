"""How close a model is to its softmax original on held-out texts: embeddings of encoders, perplexity of causal models."""

from typing import Any

from lln.hf.conversion.measure import Batch, embeddings, perplexity, similarity
from lln.hf.conversion.pretrained import is_causal


class Closeness:
    """Measures the original once, and then any model against it, for each group of batches."""

    def __init__(self, original: Any, groups: dict[str, list[Batch]]) -> None:
        self.groups, self.causal = groups, is_causal(original)
        measured: Any = perplexity if self.causal else embeddings
        self.before = {name: measured(original, batches) for name, batches in groups.items()}

    def __call__(self, model: Any) -> dict[str, dict[str, float]]:
        return {name: self._of(model, name) for name in self.groups}

    def _of(self, model: Any, name: str) -> dict[str, float]:
        if self.causal:
            return {"perplexity_before": self.before[name], "perplexity": perplexity(model, self.groups[name])}
        return similarity(self.before[name], embeddings(model, self.groups[name]))
