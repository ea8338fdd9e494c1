"""Wrong input raises at once, in the user's words, with what was given and what would fit."""

from itertools import pairwise

import torch
from torch import Tensor

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
    if any(size < 1 for size in (q.shape[2], k.shape[2], q.shape[3], v.shape[3])):
        raise ValueError(f"lengths and head sizes must be at least 1, got q {_shape(q)}, k {_shape(k)}, v {_shape(v)}")


def check_masks(
    q: Tensor, k: Tensor, key_padding_mask: Tensor | None, is_causal: bool, cu_seqlens: Tensor | None
) -> None:
    if is_causal and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"causal attention needs as many queries as keys, got {q.shape[2]} and {k.shape[2]}; "
            "to go on after earlier keys, pass the new keys alone together with state="
        )
    if key_padding_mask is not None:
        _check_key_padding_mask(q, k, key_padding_mask)
    if cu_seqlens is not None:
        if key_padding_mask is not None:
            raise ValueError("packed sequences have no padding: give cu_seqlens or key_padding_mask, not both")
        _check_cu_seqlens(q, k, cu_seqlens)


def _check_key_padding_mask(q: Tensor, k: Tensor, mask: Tensor) -> None:
    batch, queries, keys = k.shape[0], q.shape[2], k.shape[2]
    if mask.dim() > 2 or (mask.shape == (queries, keys) and batch != queries):
        raise ValueError(
            f"an N x N mask, here {_shape(mask)}, cannot be honoured: linear attention never forms the weights it would "
            f"remove. Pass key_padding_mask of shape (batch, keys) = ({batch}, {keys}), is_causal=True, or cu_seqlens"
        )
    if mask.shape != (batch, keys):
        raise ValueError(f"key_padding_mask must have shape (batch, keys) = ({batch}, {keys}), got {_shape(mask)}")
    if mask.dtype != torch.bool:
        raise TypeError(f"key_padding_mask must be bool, True where the key counts, got {mask.dtype}")
    if mask.device != k.device:
        raise ValueError(f"key_padding_mask must be on the device of k, {k.device}, got {mask.device}")


def _check_cu_seqlens(q: Tensor, k: Tensor, cu_seqlens: Tensor) -> None:
    if q.shape[0] != 1 or q.shape[2] != k.shape[2]:
        raise ValueError(
            "packed sequences have shape (1, heads, total length, head size), the same length for q and k, "
            f"got q {_shape(q)} and k {_shape(k)}"
        )
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            "cu_seqlens must be a 1-D int32 or int64 tensor of boundaries 0, n1, n1 + n2, ..., "
            f"got {cu_seqlens.dtype} of shape {_shape(cu_seqlens)}"
        )
    if torch.compiler.is_compiling():  # reading the boundaries would break the graph
        return
    edges = cu_seqlens.tolist()
    if edges[0] != 0 or edges[-1] != k.shape[2] or any(b < a for a, b in pairwise(edges)):
        raise ValueError(f"cu_seqlens must rise from 0 to the total length {k.shape[2]}, got {edges}")


def check_block_size(block_size: int) -> None:
    if not isinstance(block_size, int) or block_size < 1:
        raise ValueError(f"block_size must be a whole number of at least 1, got {block_size!r}")


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)
