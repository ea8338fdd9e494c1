"""Watching a model's softmax attention at work: every call's q, k, v and mask, with the model running as it was."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from lln.conversion.asked import Show
from lln.hf.attention.call import Call, in_one_row, read_call
from lln.hf.attention.masks import padding_mask
from lln.hf.attention.softmax import softmax_attention
from lln.hf.attention.window import window_attention
from lln.hf.conversion.batches import run_through

Watcher = Callable[[Call, Tensor], None]
NAME = "lln_teacher"

_watchers: list[Watcher] = []


@contextmanager
def watching(model: Any, watcher: Watcher) -> Iterator[None]:
    """Inside, the model's attention is softmax, and `watcher(call, output (B, Nq, Hq, Dv))` sees each call of it."""
    AttentionInterface.register(NAME, teacher_forward)
    AttentionMaskInterface.register(NAME, padding_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
        model.set_attn_implementation(before)


def shown(model: Any, batches: Iterable[dict[str, Tensor]]) -> Show[nn.Module, Call]:
    """Passes over the batches: the calls of each attention module without a window, packed sequences in one row."""

    def show(watcher: Callable[[nn.Module, Call, Tensor], None]) -> None:
        def watch(call: Call, out: Tensor) -> None:
            wanted = out.transpose(1, 2)  # (B, Hq, N, Dv)
            if call.cu_seqlens is not None:
                call, wanted = call.as_one_row(), in_one_row(wanted)
            if call.window is None:
                watcher(call.module, call, wanted)

        with watching(model, watch):
            run_through(model, batches)

    return show


def teacher_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Softmax attention as the model has it, shown to whoever watches."""
    call = read_call(module, query, key, value, attention_mask, scaling, dropout, options)
    if call.window is not None:
        inside = window_attention(call.q, call.k, call.v, call.window, call.scale, call.key_mask, call.causal)
        out = inside.transpose(1, 2).contiguous()
    else:
        out = softmax_attention(call)
    for watcher in _watchers:
        watcher(call, out)
    return out, None
