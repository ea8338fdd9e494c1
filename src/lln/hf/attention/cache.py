"""The cache of `generate()`: a state of constant size per layer instead of keys and values that grow.

A model hands new keys to `cache.update(k, v, layer)` and what comes back to its attention function. Here the new keys
come back as they are, with the layer's state attached, so the function finds what came before.
"""

import copy
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from lln.hf.attention import cache_files
from lln.hf.attention.rollback import NOT_RECORDED, Before, History
from lln.hf.modules import attention_modules
from lln.hf.options import ATTENTIONS
from lln.near_far import NearFarState
from lln.state import LLNState

NO_ROLLBACK = (
    "this layer runs a recurrence beside its attention, whose past cannot be taken back: no assisted decoding, prompt lookup "
    "or anything else that crops the cache"
)
NO_KEYS = (
    "a linear attention keeps a state instead of keys and values, so there are none to hand out (Whisper's generate() does "
    "with return_dict_in_generate=True): leave that out, or pass use_cache=False"
)
IN_PLACE = tuple(
    f.name for f in fields(NearFarState) if f.name not in ("alpha", "beta")
)  # what a compiled graph writes


class LLNCacheLayer(CacheLayerMixin):
    """One layer's past: the sums of eq. 8 up to now and, for LLN+Diag, the block that is not full yet; or a `NearFarState`."""

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.record_past = False
        self.history = History()
        self.seen = 0
        self.state: LLNState | NearFarState | None = None
        self.full: Tensor | None = (
            None  # (B,), keys that count in the blocks that are full: see lln.hf.attention.far_weight
        )
        self.waiting = False  # keys came whose state has not been kept yet

    @property
    def keys(self) -> Any:
        """There are none to hand out; whoever asks is told so. The base class sets them to None."""
        raise ValueError(NO_KEYS)

    @keys.setter
    def keys(self, _: Any) -> None:
        pass

    @property
    def values(self) -> Any:
        raise ValueError(NO_KEYS)

    @values.setter
    def values(self, _: Any) -> None:
        pass

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """The new keys and values alone; the attention function finds this layer at the keys."""
        if self.waiting:
            raise ValueError(
                "the keys of the last call never reached an LLN attention, so this cache has forgotten them: the model's "
                "attention is another one, or it changes its keys after storing them (as DeepSeek's does). Generate with "
                "use_cache=False, or set an attn_implementation that LLNCache is for, such as 'lln_diag'"
            )
        self.waiting = True
        self.seen += key_states.shape[-2]
        key_states.lln_layer = self  # type: ignore[attr-defined]
        return key_states, value_states

    def keep(
        self,
        state: LLNState | NearFarState,
        full: Tensor | None = None,
        tokens: int = 0,
        again: Callable[[int, Any, Tensor | None], tuple[Any, Tensor | None]] | None = None,
    ) -> None:
        """The state after these `tokens`, and `full` where rows are weighted by it; `again` makes both for the first of them.

        Compiled graphs write it where the last one is: addresses stay the same.
        """
        if not self.waiting:
            raise ValueError(
                "a second layer attends to the keys of another one (as Gemma 3n's last layers do), and its state would count "
                "them twice: generate with use_cache=False"
            )
        self.waiting, self.is_initialized = False, True
        if self.record_past and again is not None:
            self.history.add(Before(self.seen - tokens, self.state, self.full, again))
        if self.state is None or self.record_past or not torch.compiler.is_compiling():
            self.state, self.full = state, full
            return
        if self.full is not None and full is not None:
            self.full.copy_(full)
        if isinstance(self.state, NearFarState):
            for name in IN_PLACE:
                getattr(self.state, name).copy_(getattr(state, name))
            return
        assert isinstance(state, LLNState)
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
        self.seen, self.state, self.full, self.is_initialized, self.waiting = 0, None, None, False, False
        self.history.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.history.clear()  # of other samples than those that go on
        if self.state is not None:
            self.state = self.state.repeat_interleave(repeats)
        if self.full is not None:
            self.full = self.full.repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.history.clear()
        if self.state is not None:
            self.state = self.state.select(indices)
        if self.full is not None:
            self.full = self.full.index_select(0, indices.to(self.full.device))

    def activate_past_recording(self) -> None:
        """From now on remember what the state was before each piece of tokens, so that `crop` can go back to it."""
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last tokens back; a negative number says how many, as transformers has it."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes a negative number, how many tokens to take back; got {tokens_to_remove}")
        if tokens_to_remove == 0 or self.seen == 0:
            return
        if not self.record_past:
            raise ValueError(NOT_RECORDED)
        self.state, self.full = self.history.back_to(self.seen + tokens_to_remove)
        self.seen += tokens_to_remove

    def offload(self) -> None:
        raise ValueError("the state is small and constant: it is not offloaded; leave cache_implementation unset")


class LLNAndRecurrentLayer(LinearAttentionLayer, LLNCacheLayer):
    """The past of a layer that runs attention beside a recurrence (Falcon-H1's, Zamba2's): LLN's state, and the other's."""

    is_compileable = False
    is_croppable = False  # type: ignore[assignment]

    def __init__(self, number_of_states: int = 1) -> None:
        LLNCacheLayer.__init__(self)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def reset(self) -> None:
        LinearAttentionLayer.reset(self)
        LLNCacheLayer.reset(self)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        LinearAttentionLayer.reorder_cache(self, beam_idx)  # type: ignore[arg-type]
        LLNCacheLayer.batch_select_indices(self, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            rows = self.state.summed.shape[0]
            self.reorder_cache(torch.arange(rows, device=self.state.summed.device).repeat_interleave(repeats))

    def activate_past_recording(self) -> None:
        raise ValueError(NO_ROLLBACK)

    def crop(self, *_: Any) -> None:
        raise ValueError(NO_ROLLBACK)

    def offload(self) -> None:
        LLNCacheLayer.offload(self)


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

    def save(self, path: str | Path) -> Path:
        """Write the states to a safetensors file, for `LLNCache.load`: one prompt for many continuations."""
        others = [type(layer).__name__ for layer in self.layers if type(layer) is not LLNCacheLayer]
        if others:
            raise ValueError(f"only states of linear attention are saved, and this cache also holds a {others[0]}")
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
