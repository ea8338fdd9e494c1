"""The past of layers that run a recurrence: beside attention, or alone.

transformers' own layer for a recurrence can follow beams, but cannot be repeated to a batch; here it can.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from lln.hf.attention.cache_layer import LLNCacheLayer

NO_ROLLBACK = (
    "this model has layers that run a recurrence, whose past cannot be taken back: no assisted decoding, prompt lookup or "
    "anything else that crops the cache. cache.snapshot() before those tokens is a copy to go back to"
)


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


def repeat(layer: Any, repeats: int) -> None:
    """Each sample of a layer `repeats` times, one after the other."""
    if hasattr(layer, "batch_repeat_interleave"):
        layer.batch_repeat_interleave(repeats)
        return
    states = _states(layer)
    if states:
        layer.reorder_cache(torch.arange(len(states[0]), device=states[0].device).repeat_interleave(repeats))


def select(layer: Any, indices: Tensor) -> None:
    """Only these samples of a layer, in this order."""
    if hasattr(layer, "batch_select_indices"):
        layer.batch_select_indices(indices)
    elif _states(layer):
        layer.reorder_cache(indices)


def runs_recurrence(layer: Any) -> bool:
    """Whether a layer carries what cannot be taken back; convolutions keep their last inputs, which can."""
    return isinstance(layer, LinearAttentionLayer) and any(layer.is_recurrent_states_initialized.values())


def _states(layer: LinearAttentionLayer) -> list[Tensor]:
    return [x for x in (*layer.conv_states.values(), *layer.recurrent_states.values()) if x is not None]
