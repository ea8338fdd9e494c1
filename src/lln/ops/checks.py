"""Wrong input raises at once. The message names what was given and what would fit.

Checks are of two kinds. Those of shapes, dtypes and devices read no value: they hold in a compiled graph and cost a GPU
nothing. `check_boundaries` reads the values of `cu_seqlens`, which only a CPU can without waiting; it belongs in the body of
any code that uses them as addresses.
"""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lln.ops import stretches

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.dim() != 4:
            raise ValueError(f"{name} must have 4 dimensions (batch, heads, length, head size), got {_shape(x)}")
    if not (q.device == k.device == v.device):
        raise ValueError(f"q, k and v must be on one device, got {q.device}, {k.device} and {v.device}")
    if not (q.dtype == k.dtype == v.dtype):
        raise TypeError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if q.dtype not in DTYPES:
        raise TypeError(f"q, k and v must be float16, bfloat16, float32 or float64, got {q.dtype}")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"k and v must agree in batch, heads and length, got {_shape(k)} and {_shape(v)}")
    if q.shape[0] != k.shape[0]:
        raise ValueError(f"q and k must have one batch size, got {q.shape[0]} and {k.shape[0]}")
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"q and k must have one head size, got {q.shape[3]} and {k.shape[3]}")
    if k.shape[1] < 1 or q.shape[1] % k.shape[1] != 0:
        raise ValueError(f"the {q.shape[1]} heads of q must be a multiple of the {k.shape[1]} heads of k and v")
    shortest = 1 if stretches.holders is None else 0  # a stretch of a sequence may be empty
    if min(q.shape[2], k.shape[2]) < shortest or min(q.shape[3], v.shape[3]) < 1:
        raise ValueError(f"lengths and head sizes must be at least 1, got q {_shape(q)}, k {_shape(k)}, v {_shape(v)}")


def check_queries_and_keys(q: Tensor, k: Tensor) -> None:
    if q.dim() != 4 or k.dim() != 4:
        raise ValueError(f"q and k must be (batch, heads, length, head size), got {_shape(q)} and {_shape(k)}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q and k must agree in batch and head size, got {_shape(q)} and {_shape(k)}")
    if k.shape[1] < 1 or q.shape[1] % k.shape[1]:
        raise ValueError(f"query heads must be a multiple of key heads, got {q.shape[1]} and {k.shape[1]}")


def check_masks(q: Tensor, k: Tensor, key_mask: Tensor | None, is_causal: bool, cu_seqlens: Tensor | None) -> None:
    if is_causal and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"causal attention needs as many queries as keys, got {q.shape[2]} and {k.shape[2]}; "
            "to go on after earlier keys, pass the new keys alone together with state="
        )
    if key_mask is not None:
        _check_key_mask(q, k, key_mask)
    if cu_seqlens is not None:
        if key_mask is not None:
            raise ValueError("packed sequences have no padding: give cu_seqlens or key_mask, not both")
        check_shapes_of_packed(q, k, cu_seqlens)


def _check_key_mask(q: Tensor, k: Tensor, mask: Tensor) -> None:
    batch, queries, keys = k.shape[0], q.shape[2], k.shape[2]
    if mask.dim() > 2 or (mask.shape == (queries, keys) and batch != queries):
        raise ValueError(
            f"an N x N mask, here {_shape(mask)}, cannot be honoured: linear attention never forms the weights it would "
            f"remove. Pass key_mask of shape (batch, keys) = ({batch}, {keys}), is_causal=True, or cu_seqlens"
        )
    if mask.shape != (batch, keys):
        raise ValueError(f"key_mask must have shape (batch, keys) = ({batch}, {keys}), got {_shape(mask)}")
    if mask.dtype != torch.bool:
        raise TypeError(f"key_mask must be bool, True where the key counts, got {mask.dtype}")
    if mask.device != k.device:
        raise ValueError(f"key_mask must be on the device of k, {k.device}, got {mask.device}")


def check_shapes_of_packed(q: Tensor, k: Tensor, cu_seqlens: Tensor) -> None:
    """Packed q and k, and the form of their boundaries; no value is read."""
    if q.shape[0] != 1 or k.shape[0] != 1 or q.shape[2] != k.shape[2]:
        raise ValueError(
            "packed sequences have shape (1, heads, total length, head size), the same length for q and k, "
            f"got q {_shape(q)} and k {_shape(k)}"
        )
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            "cu_seqlens must be a 1-D int32 or int64 tensor of boundaries 0, n1, n1 + n2, ..., "
            f"got {cu_seqlens.dtype} of shape {_shape(cu_seqlens)}"
        )


def check_boundaries(cu_seqlens: Tensor | None, total: int) -> None:
    """Boundaries rise from 0 to `total`, the length that is packed. Reads values, so on a CPU only."""
    if cu_seqlens is None or not cu_seqlens.is_cpu:
        return
    edges = cu_seqlens.tolist()
    if edges[0] != 0 or edges[-1] != total or any(b < a for a, b in pairwise(edges)):
        raise ValueError(f"cu_seqlens must rise from 0 to the total length {total}, got {_shortened(edges)}")


def _shortened(edges: list[int]) -> str:
    return str(edges) if len(edges) <= 20 else f"[{', '.join(map(str, edges[:8]))}, ..., {edges[-1]}]"


def check_operand(name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """A tensor of exactly this shape, dtype and device."""
    if tuple(x.shape) != shape or x.dtype != dtype or x.device != device:
        raise ValueError(
            f"{name} must be {dtype} of shape {shape} on {device}, got {x.dtype} of shape {_shape(x)} on {x.device}"
        )


def check_one_length(q: Tensor, k: Tensor) -> None:
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"blocks need as many queries as keys, got {q.shape[2]} and {k.shape[2]}")


def softmax_scale(scale: float | None, head_dim: int) -> float:
    """As given, or 1/sqrt(D)."""
    if scale is None:
        return float(head_dim**-0.5)
    if not torch.compiler.is_compiling() and not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale}")
    return float(scale)


def check_block_size(block_size: int) -> None:
    if not isinstance(block_size, int) or isinstance(block_size, bool) or block_size < 1:
        raise ValueError(f"block_size must be a whole number of at least 1, got {block_size!r}")


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def refuse_unknown(unknown: dict[str, Any]) -> None:
    """Arguments that a function does not have, and what took the place of one that it had."""
    if "key_padding_mask" in unknown:
        raise TypeError(
            "functions take key_mask, True where a key counts; key_padding_mask, True where it is padding, belongs to layers: "
            "pass key_mask=~key_padding_mask"
        )
    if unknown:
        raise TypeError(f"unexpected argument {next(iter(unknown))!r}")
