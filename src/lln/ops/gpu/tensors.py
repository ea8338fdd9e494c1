"""Tensors as the kernels take them: an address and strides, in one argument."""

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """(B, H, N, D) with any strides."""

    data: Tensor
    batch: int
    head: int
    row: int
    column: int


class Scales(NamedTuple):
    """alpha, beta or bias, (S, H, D) with any strides."""

    data: Tensor
    sequence: int
    head: int
    column: int


class Weight(NamedTuple):
    """w of LLN+Diag, (B, H, N); the stride of rows is 0 where all have the same."""

    data: Tensor
    batch: int
    head: int
    row: int


class Mask(NamedTuple):
    """(B, N), one byte a key."""

    data: Tensor
    batch: int
    row: int


class State(NamedTuple):
    """c (S, H, D), S (S, H, D, Dv) and z (S, H, D), contiguous, or one such state a stretch, (P, H, ...)."""

    maximum: Tensor
    summed: Tensor
    normaliser: Tensor


class Sums(NamedTuple):
    """The gradient of a state: that of its sums and that of its normaliser, contiguous."""

    summed: Tensor
    normaliser: Tensor


def rows(x: Tensor) -> Rows:
    return Rows(x, *x.stride())


def scales(x: Tensor | None) -> Scales | None:
    return None if x is None else Scales(x, *x.stride())


def weights(x: Tensor | None) -> Weight | None:
    """w, (B, H, N or 1)."""
    return None if x is None else Weight(x, x.stride(0), x.stride(1), x.stride(2) if x.shape[2] > 1 else 0)


def mask(x: Tensor | None) -> Mask | None:
    return None if x is None else Mask(x.view(dtype=torch.uint8), *x.stride())
