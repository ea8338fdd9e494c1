"""Where a conversion breaks: what a model is worth with LLN in one layer alone, and in all layers up to one.

    only   LLN in attention module l, softmax in all others
    up_to  LLN in attention modules 0 ... l, softmax after them

A causal model's heads often rest on its first token; how much of their softmax weight goes there is told beside it.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from lln.conversion.modes import marked
from lln.hf.attention.call import Call
from lln.hf.attention.softmax import softmax_matrix
from lln.hf.conversion.measure import Batch
from lln.hf.conversion.watching import watching
from lln.hf.distillation.maps import converted_modules


def layer_by_layer(
    model: Any, measure: Callable[[Any], Any], on_progress: Callable[[str], None] = lambda _: None
) -> dict[str, list[Any]]:
    """`measure(model)` with none but one of the converted attention modules, and with all up to it, one after the other."""
    modules = converted_modules(model)
    found: dict[str, list[Any]] = {"only": [], "up_to": []}
    for i in range(len(modules)):
        on_progress(f"layer {i} of {len(modules)}")
        with softmax_in(modules[:i] + modules[i + 1 :]):
            found["only"].append(measure(model))
        with softmax_in(modules[i + 1 :]):
            found["up_to"].append(measure(model))
    return found


def softmax_in(modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
    """Inside, these converted attention modules are softmax."""
    return marked(modules, "lln_keeps_softmax")


@torch.no_grad()
def first_token_weight(model: Any, batch: Batch) -> list[float]:
    """Of softmax, for each converted attention module: the mean over heads and queries that are not the first token."""
    found: list[float] = []
    own = set(converted_modules(model))

    def watch(call: Call, _: Tensor) -> None:
        if call.module in own:
            weights = softmax_matrix(call)[:, :, 1:, 0]  # (B, H, N - 1)
            rows = None if call.key_mask is None else call.key_mask[:, None, 1:].expand_as(weights)
            found.append(float((weights if rows is None else weights[rows]).mean()))

    with watching(model, watch):
        model(**batch)
    return found
