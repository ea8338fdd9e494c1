"""The cache of `generate()`: a state of constant size per layer instead of keys and values that grow.

A model hands new keys to `cache.update(k, v, layer)` and what comes back to its attention function. Here the new keys
come back as they are, with the layer's state attached, so the function finds what came before.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from lln.hf.modules import attention_modules
from lln.hf.options import ATTENTIONS
from lln.state import LLNState

NO_ROLLBACK = (
    "a linear attention's past is a sum: tokens cannot be taken out of it again. Assisted decoding, prompt lookup and "
    "anything else that crops the cache needs softmax attention"
)


class LLNCacheLayer(CacheLayerMixin):
    """One layer's past: the sums of eq. 8 up to now and, for LLN+Diag, the block that is not full yet."""

    is_sliding = False
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.state: LLNState | None = None
        self.waiting = False  # keys came whose state has not been kept yet

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """The new keys and values alone; the attention function finds this layer at the keys."""
        if self.waiting:
            raise ValueError(
                "the keys of the last call never reached an LLN attention, so this cache has forgotten them: the model's "
                "attention is another one, or it changes its keys after storing them (as DeepSeek's does). Generate with "
                "use_cache=False, or set attn_implementation='lln_diag' or 'lln' for LLNCache"
            )
        self.waiting = True
        self.seen += key_states.shape[-2]
        key_states.lln_layer = self  # type: ignore[attr-defined]
        return key_states, value_states

    def keep(self, state: LLNState) -> None:
        """The state after these keys. Compiled graphs write it where the last one is: addresses stay the same."""
        if not self.waiting:
            raise ValueError(
                "a second layer attends to the keys of another one (as Gemma 3n's last layers do), and its state would count "
                "them twice: generate with use_cache=False"
            )
        self.waiting, self.is_initialized = False, True
        if self.state is None or not torch.compiler.is_compiling():
            self.state = state
            return
        for name in ("maximum", "summed", "normaliser"):
            getattr(self.state, name).copy_(getattr(state, name))
        if self.state.block is not None:
            for name in ("keys", "values", "counts", "filled", "started"):
                getattr(self.state.block, name).copy_(getattr(state.block, name))

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, self.seen

    def get_max_length(self) -> int:
        return -1

    def nbytes(self) -> int:
        return 0 if self.state is None else self.state.nbytes()

    def reset(self) -> None:
        self.seen, self.state, self.is_initialized, self.waiting = 0, None, False, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self.state = self.state.repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.select(indices)

    def crop(self, *_: Any) -> None:
        raise ValueError(NO_ROLLBACK)

    def activate_past_recording(self) -> None:
        raise ValueError(NO_ROLLBACK)

    def offload(self) -> None:
        raise ValueError("the state is small and constant: it is not offloaded; leave cache_implementation unset")


class LLNCache(Cache):
    """One `LLNCacheLayer` for each layer, and ordinary growing ones for layers that keep softmax.

    generate() makes it by itself. For a loop of your own: `LLNCache.of(model)`, passed as past_key_values.
    """

    def __init__(self, layers: int, softmax_layers: set[int] | frozenset[int] = frozenset()) -> None:
        super().__init__(layers=[DynamicLayer() if i in softmax_layers else LLNCacheLayer() for i in range(layers)])
        self.has_softmax = bool(softmax_layers)

    @staticmethod
    def of(model: nn.Module) -> "LLNCache":
        """A cache for this model: which of its layers are linear is read from the model."""
        causal = [m for m in attention_modules(model) if getattr(m, "is_causal", False)]
        if not causal:
            raise ValueError(f"{type(model).__name__} has no causal attention, so it has no past to keep")
        others = {str(m.config._attn_implementation) for m in causal} - set(ATTENTIONS)  # type: ignore[union-attr]
        if others:
            raise ValueError(
                f"an LLNCache is for {' and '.join(ATTENTIONS)}, but this model's attention is {', '.join(sorted(others))}: "
                "it needs a cache that keeps every key"
            )
        index = {int(getattr(m, "layer_idx", i) or 0): m for i, m in enumerate(causal)}
        windows = [i for i, m in index.items() if getattr(m, "sliding_window", None) is not None]
        if windows:
            raise ValueError(
                f"layers {windows} have a sliding window, which keeps no state: generate with use_cache=False"
            )
        kept = {i for i, m in index.items() if getattr(m, "lln_keeps_softmax", False)}
        return LLNCache(max(index) + 1, kept)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """One mask serves all layers: of the new tokens, or of all where a softmax layer looks back at all."""
        seen = self.get_seq_length()
        return (seen + query_length, 0) if self.has_softmax else (query_length, seen)

    def nbytes(self) -> int:
        """Bytes the linear layers' states take."""
        return sum(layer.nbytes() for layer in self.layers if isinstance(layer, LLNCacheLayer))
