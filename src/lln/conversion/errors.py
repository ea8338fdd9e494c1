"""How far an output is from what softmax gave: |o - t|^2 / |t|^2, so that outputs of any scale count alike."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def relative(given: Tensor, wanted: Tensor) -> Tensor:
    return (given - wanted).square().sum() / wanted.square().sum().clamp_min(1e-12)


def relative_error(given: Any, wanted: Any, batch: Any = None) -> Tensor:
    """|o - t|^2 / |t|^2, summed over the floating-point tensors of an output: a tensor, or a tuple, list or mapping of them."""
    pairs = list(zip(floats(given), floats(wanted), strict=True))
    if not pairs:
        raise ValueError(
            f"the model returns no floating-point tensor to compare, but {type(wanted).__name__}: give a loss of your own, "
            "loss(output, teacher's output, batch)"
        )
    return torch.stack([relative(o, t) for o, t in pairs]).sum()


def floats(output: Any) -> list[Tensor]:
    """The floating-point tensors of an output."""
    return [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]
