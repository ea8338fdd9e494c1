"""Where a model computes softmax attention: the modules that call `scaled_dot_product_attention`, found by watching it run.

A site is a module and the number of the call inside one pass through it: most modules have one. While a model is watched, a
mode of torch's overrides sees the calls, whatever name the function was imported under; hooks tell in which module they happen.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lln.conversion.call import AttentionCall, CannotReplace, read_call, sdpa_arguments

SDPA = F.scaled_dot_product_attention
# Functions of torch that compute attention in one piece: what they do inside is not seen.
WHOLE = {
    F.multi_head_attention_forward: "it calls multi_head_attention_forward itself; use nn.MultiheadAttention",
    torch._native_multi_head_attention: "torch's fused multi-head attention",
    torch._transformer_encoder_layer_fwd: "torch's fused encoder layer",
}


OUTSIDE = "(outside)"  # the path of what no module of the model computes


@dataclass(frozen=True)
class Site:
    """Call number `number` of attention in one pass through the module at `path`, which is empty for the model itself."""

    path: str
    number: int

    def __str__(self) -> str:
        return named(self.path) if self.number == 0 else f"{named(self.path)} (call {self.number + 1})"


def named(path: str) -> str:
    """The path of a module as people are told of it."""
    return path or "the model itself"


Watcher = Callable[[Site, AttentionCall, Tensor], None]  # the last is softmax's output, (B, Hq, Nq, Dv)


class Watching(TorchFunctionMode):
    """Lets a model run as it is, and shows every softmax attention that it computes."""

    def __init__(self, model: nn.Module, watcher: Watcher) -> None:
        super().__init__()
        self.watcher = watcher
        self.refused: dict[Site, str] = {}
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack: list[str] = []
        self._calls: dict[int, int] = defaultdict(int)  # of the passes on the stack, by their depth

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in WHOLE:
            self.refused[self._site()] = WHOLE[func]
        out = func(*args, **kwargs)
        if func is SDPA:
            site = self._site()
            try:
                call = read_call(**sdpa_arguments(*args, **kwargs))
                self.watcher(site, call, out.reshape(*call.q.shape[:3], -1))
            except CannotReplace as reason:
                self.refused[site] = str(reason)
        return out

    def entered(self, module: nn.Module, _: Any) -> None:
        self._stack.append(self._names.get(id(module), type(module).__name__))
        self._calls[len(self._stack)] = 0

    def left(self, module: nn.Module, *_: Any) -> None:
        self._stack.pop()

    def _site(self) -> Site:
        depth = len(self._stack)
        number = self._calls[depth]
        self._calls[depth] += 1
        return Site(self._stack[-1] if self._stack else OUTSIDE, number)


@contextmanager
def watching(model: nn.Module, watcher: Watcher) -> Iterator[Watching]:
    """Inside, `watcher(site, call, output)` sees each softmax attention; `refused` has those that cannot be replaced."""
    mode = Watching(model, watcher)
    hooks = []
    for module in model.modules():
        hooks.append(module.register_forward_pre_hook(mode.entered))
        hooks.append(module.register_forward_hook(mode.left, always_call=True))
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # fused layers do not call the function
    try:
        with mode:
            yield mode
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for hook in hooks:
            hook.remove()
