"""What the mask means to a linear attention: which keys count, and where packed sequences begin.

A linear attention never forms the weights an N x N mask would remove. The model's mask function therefore hands on the
padding mask (B, Nk), and everything that is not padding or causality is refused in words.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NO_4D_MASK = (
    "a mask of shape {shape} cannot be honoured by a linear attention, which never forms the weights it would remove. "
    "Pass attention_mask of shape (batch, keys), 1 where the token counts; packed sequences by restarting position_ids"
)


def padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    allow_is_causal_skip: bool = True,
    device: torch.device | None = None,
    **_: Any,
) -> Tensor | None:
    """The mask interface: (B, kv_length) bool, True where the key counts, or None where all do.

    Causality reaches the attention function by another way (`is_causal`), and so does a window (`sliding_window`). Packing
    does in most models, as `position_ids`; for the others the mask carries where sequences begin. `use_vmap` says that the
    model adds a mask of its own, such as bidirectional image tokens.
    """
    if use_vmap:
        raise ValueError(
            "this model adds a mask of its own (such as a bidirectional prefix or image tokens), which a linear "
            "attention cannot honour: use attn_implementation='sdpa' for it"
        )
    if attention_mask is None:
        if mask_function is None or allow_is_causal_skip or q_length != kv_length:
            return None
        return _packing_mask(batch_size, q_length, mask_function, device)
    if attention_mask.dim() != 2:
        raise ValueError(NO_4D_MASK.format(shape=tuple(attention_mask.shape)))
    return attention_mask[:, kv_offset : kv_offset + kv_length].to(torch.bool)


def _packing_mask(
    batch: int, length: int, mask_function: Callable[..., Any], device: torch.device | None
) -> Tensor | None:
    """A mask of True that carries `lln_starts` (B, N - 1): a token that may not see the one before it begins a sequence."""
    if torch.compiler.is_compiling():
        return None  # packed_boundaries says there what serves
    rows = torch.arange(batch, device=device)[:, None]
    tokens = torch.arange(length, device=device)[None]
    starts = ~mask_function(rows, 0, tokens[:, 1:], tokens[:, :-1]).expand(batch, -1)
    if not bool(starts.any()):
        return None
    mask = torch.ones(batch, length, dtype=torch.bool, device=device)
    mask.lln_starts = starts  # type: ignore[attr-defined]
    return mask


def keys_that_count(attention_mask: Any, keys: int) -> Tensor | None:
    """The padding mask for the keys at hand: the last `keys` columns, since earlier ones live on in the state."""
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2:
        shape = tuple(attention_mask.shape) if isinstance(attention_mask, Tensor) else type(attention_mask).__name__
        raise ValueError(NO_4D_MASK.format(shape=shape))
    if attention_mask.shape[1] < keys:
        raise ValueError(f"attention_mask covers {attention_mask.shape[1]} keys, but there are {keys}")
    return attention_mask[:, attention_mask.shape[1] - keys :].to(torch.bool)


def packed_boundaries(
    position_ids: Tensor | None, cu_seqlens: Tensor | None, batch: int, length: int, starts: Tensor | None = None
) -> Tensor | None:
    """Boundaries 0, n1, n1 + n2, ... in the flattened (1, H, B N, D) batch, or None where rows are one sequence each.

    A sequence begins wherever position_ids do not go on by one, which is the convention of transformers, or where `starts`
    (B, N - 1) has it already. In a compiled
    graph the number of sequences cannot depend on the data: there a restart raises, and cu_seq_lens_q serves.
    """
    if cu_seqlens is not None:
        if batch != 1:
            raise ValueError(f"cu_seq_lens_q describes one packed row, but the batch has {batch}")
        return cu_seqlens
    if starts is None:
        if position_ids is None or position_ids.dim() != 2 or position_ids.shape[1] != length:
            return None
        starts = position_ids.diff(dim=1) != 1  # (B or 1, N - 1)
    if torch.compiler.is_compiling():
        torch._assert_async(
            ~starts.any(),
            "position_ids restart: packed sequences in a compiled model need their boundaries as cu_seq_lens_q",
        )
        return None
    if not bool(starts.any()):
        return None
    starts = torch.cat([torch.ones_like(starts[:, :1]), starts], dim=1).expand(batch, -1)
    edges = starts.flatten().nonzero().flatten()
    return torch.cat([edges, edges.new_tensor([batch * length])])
