"""A loop over a dimension whose size the graph does not know: ONNX's Scan."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

Tensors = tuple[Tensor, ...]


def scanned(step: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]], start: Tensors, over: Tensors) -> Any:
    """(carried, results) of step(carried, piece) -> (carried, result) over the first dimension of `over`."""
    return scan(step, tuple(t.contiguous() for t in start), tuple(t.contiguous() for t in over), dim=0)


def refuse_packed(cu_seqlens: Tensor | None) -> None:
    if cu_seqlens is not None:
        raise NotImplementedError(
            "packed sequences (cu_seqlens) have no form that a graph outside of torch can hold: export with a padded batch and "
            "a mask"
        )


def to_multiple(x: Tensor, size: int, dim: int) -> Tensor:
    """Zeros (or False) at the end of `dim`, up to a multiple of `size`."""
    missing = (x.shape[dim] + size - 1) // size * size - x.shape[
        dim
    ]  # divisions of what is positive mean the same everywhere
    return torch.nn.functional.pad(x, (0, 0) * (x.dim() - 1 - dim % x.dim()) + (0, missing))
