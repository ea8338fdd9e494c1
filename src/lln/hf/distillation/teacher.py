"""The softmax model that a distillation follows: its outputs, and its attention's, for the batches of a group.

    logits = head(h)      h (B, N, width) the last hidden states, the head a projection to the vocabulary

Logits are as wide as a vocabulary, too wide to keep for a group of batches. Where the head takes the last hidden states as they
are, which most causal models do, h is kept instead and every later pass over the group costs the head alone.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput

from lln.hf.conversion.batches import without_labels
from lln.hf.conversion.watching import watching
from lln.hf.distillation.losses import Batch, Captured, Others, capture_layers, others_of
from lln.hf.distillation.low_rank import LowRank


class Shown(NamedTuple):
    """What the teacher did on a batch: `wanted`, if it could be kept, `hidden`, if the logits follow from it, or neither."""

    batch: Batch
    wanted: Any = None
    hidden: Tensor | None = None
    others: Others | None = None


class Teacher:
    """updates: low-rank updates, if the teacher is the model itself, which teaches without what it learns."""

    def __init__(self, model: Any, updates: LowRank | None = None) -> None:
        self.model, self.updates = model, updates
        self.keeps_hidden: bool | None = None  # not known before the first batch

    def layers(self, pairs: dict[nn.Module, nn.Module], batch: Batch) -> list[Captured]:
        with self._own_weights():
            return capture_layers(self.model, pairs, batch)

    def outputs(self, batches: list[Batch]) -> list[Shown]:
        """For each batch of a group: what is worth keeping of the teacher's output."""
        if self.model.get_output_embeddings() is None:
            found = [self.output(batch) for batch in batches]
            others = others_of(found, batches)
            return [Shown(batch, wanted, None, others) for batch, wanted in zip(batches, found, strict=True)]
        if self.keeps_hidden is None:
            self.keeps_hidden = self._head_takes_hidden_states(batches[0])
        return [Shown(batch, None, self._hidden(batch) if self.keeps_hidden else None) for batch in batches]

    def wanted(self, shown: Shown) -> Any:
        """The teacher's output for one of those batches."""
        if shown.wanted is not None:
            return shown.wanted
        if shown.hidden is None:
            return self.output(shown.batch)
        with torch.no_grad():
            return CausalLMOutput(logits=self.model.get_output_embeddings()(shown.hidden))

    @torch.no_grad()
    def output(self, batch: Batch) -> Any:
        with self._own_weights(), watching(self.model, lambda call, out: None):
            return self.model(**without_labels(batch))

    @torch.no_grad()
    def _hidden(self, batch: Batch) -> Any:
        with self._own_weights(), watching(self.model, lambda call, out: None):
            return getattr(self.model.base_model(**without_labels(batch)), "last_hidden_state", None)

    @torch.no_grad()
    def _head_takes_hidden_states(self, batch: Batch) -> bool:
        """Tried on one text: heads that transform, scale or cap do not give the model's logits to the bit."""
        one = {name: x[:1] for name, x in batch.items()}
        hidden = self._hidden(one)
        return hidden is not None and torch.equal(
            self.model.get_output_embeddings()(hidden), getattr(self.output(one), "logits", hidden)
        )

    def _own_weights(self) -> AbstractContextManager[None]:
        return nullcontext() if self.updates is None else self.updates.off()
