"""The cache of `generate()`: a state of constant size per layer instead of keys and values that grow.

A model hands new keys to `cache.update(k, v, layer)` and what comes back to its attention function. Here the new keys
come back as they are, with the layer's state attached, so the function finds what came before.
"""

import copy
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, LinearAttentionAndFullAttentionLayer

from lln.hf.attention import cache_files
from lln.hf.attention.cache_layer import LLNCacheLayer
from lln.hf.attention.recurrent_layer import NO_ROLLBACK, LLNAndRecurrentLayer, repeat, runs_recurrence, select
from lln.hf.modules import attention_modules
from lln.hf.options import ATTENTIONS


class LLNCache(Cache):
    """An `LLNCacheLayer` for each layer that is linear; the others keep what they keep with softmax.

    Those are layers that stay softmax (all keys), that have a window (the last keys), or that are no attention at all
    (convolutions and recurrences of LFM2, Jamba, Qwen3-Next). generate() creates it automatically. In your own loop, pass
    `LLNCache.of(model)` as past_key_values.
    """

    @staticmethod
    def of(model: nn.Module) -> "LLNCache":
        """A cache for this model: which of its layers are linear is read from the model."""
        causal = [m for m in attention_modules(model) if getattr(m, "is_causal", False)]
        if not causal:
            raise ValueError(
                f"{type(model).__name__} has no causal attention, so it has no past to keep: use_cache=False"
            )
        others = {str(m.config._attn_implementation) for m in causal} - set(ATTENTIONS)  # type: ignore[union-attr]
        if others:
            raise ValueError(
                f"an LLNCache is for {' and '.join(ATTENTIONS)}, but this model's attention is {', '.join(sorted(others))}: "
                "it needs a cache that keeps every key"
            )
        index = {int(getattr(m, "layer_idx", i) or 0): m for i, m in enumerate(causal)}
        softmax: list[Any] = list(DynamicCache(config=model.config).layers)  # type: ignore[arg-type]
        softmax += [DynamicLayer() for _ in range(max(index) + 1 - len(softmax))]
        kept = {i for i, m in index.items() if getattr(m, "lln_keeps_softmax", False)}
        return LLNCache([layer if i in kept else _linear(layer) for i, layer in enumerate(softmax)])

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """One mask serves all layers without a window: of the new tokens, or of all where one looks back at all."""
        if self.is_sliding[layer_idx]:
            return super().get_mask_sizes(query_length, layer_idx)
        looks_back = any(isinstance(x, DynamicLayer) and not x.is_sliding for x in self.layers)
        seen = self.get_seq_length()
        return (seen + query_length, 0) if looks_back else (query_length, seen)

    def snapshot(self) -> "LLNCache":
        """A copy with memory of its own: go on from it later, or several times; `batch_repeat_interleave` makes it a batch."""
        twin = copy.copy(self)
        twin.layers = [_copied(layer) for layer in self.layers]
        return twin

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last tokens back, in every layer or in none; a negative number says how many."""
        if tokens_to_remove and any(runs_recurrence(layer) for layer in self.layers):
            raise ValueError(NO_ROLLBACK)
        super().crop(tokens_to_remove)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sample `repeats` times: one prompt, and a batch of continuations."""
        for layer in self.layers:
            repeat(layer, repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these samples, in this order."""
        for layer in self.layers:
            select(layer, indices)

    def save(self, path: str | Path) -> Path:
        """Write it to a safetensors file, for `LLNCache.load`: one prompt for many continuations.

        Linear layers, windows and recurrences take the same room whatever the prompt's length; layers that stay softmax keep
        all their keys, in the file as in memory. What `crop` would need is not written.
        """
        cache_files.write(Path(path), self.layers)
        return Path(path)

    @staticmethod
    def load(path: str | Path, model: nn.Module) -> "LLNCache":
        """The cache that `save` wrote, for the same model."""
        cache = LLNCache.of(model)
        cache_files.read(Path(path), cache.layers, next(model.parameters()).device)
        return cache

    def nbytes(self) -> int:
        """Bytes the linear layers' states take."""
        return sum(layer.nbytes() for layer in self.layers if isinstance(layer, LLNCacheLayer))


def _copied(layer: Any) -> Any:
    if not isinstance(layer, LLNCacheLayer) or isinstance(layer, LLNAndRecurrentLayer):
        return copy.deepcopy(layer)
    twin = LLNCacheLayer()
    twin.seen, twin.record_past, twin.is_initialized = layer.seen, layer.record_past, layer.is_initialized
    twin.state = None if layer.state is None else layer.state.clone()
    twin.full = None if layer.full is None else layer.full.clone()
    return twin


def _linear(layer: Any) -> Any:
    """What a linear layer keeps in place of all keys; every other kind of layer stays as it is."""
    if type(layer) is LinearAttentionAndFullAttentionLayer:
        return LLNAndRecurrentLayer(layer.number_of_states)
    return LLNCacheLayer() if type(layer) is DynamicLayer else layer
