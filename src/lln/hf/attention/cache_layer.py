"""One layer of the cache: a state of constant size in place of keys and values that grow."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from lln.hf.attention.rollback import NOT_RECORDED, Before, History
from lln.near_far import NearFarState
from lln.state import LLNState

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
