"""The cost of a call, counted rather than timed: FLOPs of products, numbers written, bytes kept for the backward pass.

Counting is exact and repeatable, so growth with the length can be a test.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    flops: int  # of matrix products, forward and backward
    written: int  # numbers in the results of all operators that are no views, forward
    saved: int  # bytes kept for the backward pass, each storage once, weights not counted


class _Written(TorchDispatchMode):
    """Adds up the sizes of the results of every operator that makes new storage."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            results = result if isinstance(result, tuple | list) else (result,)
            self.numbers += sum(r.numel() for r in results if isinstance(r, Tensor))
        return result


def cost_of(module: nn.Module, x: Tensor, **arguments: Any) -> Cost:
    """The cost of module(x, ...) and of its backward pass.

    Flops are counted with softmax attention as plain products, because the fused kernel is not one the counter knows.
    """
    x = x.detach().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(x, **arguments).sum().backward()
    with torch.no_grad(), _Written() as written:
        module(x, **arguments)
    return Cost(counter.get_total_flops(), written.numbers, saved_bytes(module, x, **arguments))


def saved_bytes(module: nn.Module, x: Tensor, **arguments: Any) -> int:
    """Bytes that autograd keeps between forward and backward, besides weights and the input."""
    known = {p.untyped_storage().data_ptr() for p in module.parameters()} | {x.untyped_storage().data_ptr()}
    kept: dict[int, torch.UntypedStorage] = {}  # holding the storage keeps its address from being used again

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(x, **arguments)
    return sum(storage.nbytes() for storage in kept.values())


def growth(measure: Callable[[int], int], lengths: tuple[int, int]) -> float:
    """The exponent p in cost ~ N^p between two lengths."""
    short, long = lengths
    return math.log(measure(long) / measure(short)) / math.log(long / short)
