"""What the mask means to a linear attention: which keys count, and where packed sequences begin.

A linear attention never forms the weights an N x N mask would remove. The model's mask function therefore hands on the
padding mask (B, Nk), with what else the mask asks for written on it; whatever is not padding, causality, a window or
packing is refused in words.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.masking_utils import causal_mask_function

from lln.hf.attention.mask_patterns import Pattern, pattern_of
from lln.ops import stretches

UNKNOWN_PATTERN = (
    "the mask of this model ({model}) is not one a linear attention can honour: besides padding it may be causal, packed, or "
    "have a sliding window. A bidirectional prefix, image tokens that see each other both ways, chunks and masks of a model's "
    "own are none of these, and leaving them out would let tokens see what they must not: use attn_implementation='sdpa'"
)
NO_PAIR_MASK = (
    "a mask of shape {shape} reached {module} and cannot be honoured by a linear attention, which never forms the weights it "
    "would act on. If you passed it: pass attention_mask of shape (batch, keys), 1 where the token counts, and packed "
    "sequences by restarting position_ids. If the model makes it (as Swin does for its shifted windows, BEiT for relative "
    "positions), this model keeps softmax: attn_implementation='sdpa'"
)

UNPADDED = torch.int8  # of a mask that says nothing of padding: no model or user makes one, and it outlives `lln_asked`


class Asked(NamedTuple):
    """What the model's mask asks for, written on the padding mask as `lln_asked`."""

    pattern: Pattern
    starts: Tensor | None  # (B, N - 1), True where a token begins a packed sequence


def padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | None = None,
    config: Any = None,
    **_: Any,
) -> Tensor | None:
    """The mask interface: (B, kv_length) bool, True where the key counts, with `lln_asked` on it.

    Without padding it is (1, kv_length) of UNPADDED's type, or None where all tokens see each other. A causal mask is there
    all the same: a model whose attention does not call itself causal relies on it. `use_vmap` says that the model adds a mask
    of its own, which is refused.
    """
    pattern = None if use_vmap else pattern_of(mask_function)
    if pattern is None:
        return _refused(UNKNOWN_PATTERN.format(model=getattr(config, "model_type", None) or type(config).__name__))
    if attention_mask is None:
        if pattern == Pattern(causal=False) and allow_is_bidirectional_skip:
            return None
        mask = torch.ones(1, kv_length, dtype=UNPADDED, device=device)
    elif attention_mask.dim() != 2:
        return _refused(NO_PAIR_MASK.format(shape=tuple(attention_mask.shape), module="the mask function"))
    else:
        mask = attention_mask[:, kv_offset : kv_offset + kv_length].to(torch.bool)
    starts = None if pattern.sequences is None else pattern.sequences.diff(dim=1) != 0
    mask.lln_asked = Asked(pattern, starts)  # type: ignore[attr-defined]
    return mask


def _refused(reason: str) -> Tensor:
    """A mask that the attention refuses, since a model may make one for which it has no layer. Four dimensions: should it lose
    its `lln_refused` on the way, it is refused all the same."""
    mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    mask.lln_refused = reason  # type: ignore[attr-defined]
    return mask


def keys_that_count(mask: Any, module: nn.Module, queries: int, keys: int, cross: bool) -> Tensor | None:
    """The padding mask for the keys at hand: the last `keys` columns, since earlier ones live on in the state."""
    if mask is None:
        return None
    name = type(module).__name__
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(getattr(mask, "lln_refused", None) or NO_PAIR_MASK.format(shape=shape, module=name))
    if mask.dtype == UNPADDED:
        return None
    if mask.shape[1] < keys:
        raise ValueError(f"attention_mask covers {mask.shape[1]} keys, but there are {keys}")
    if getattr(mask, "lln_asked", None) is None:
        _refuse_unknown_origin(mask, name, queries, keys, cross)
    return mask[:, mask.shape[1] - keys :].to(torch.bool)


def _refuse_unknown_origin(mask: Tensor, name: str, queries: int, keys: int, cross: bool) -> None:
    """A mask that did not come straight from `padding_mask` is one of padding only if it cannot be anything else."""
    if mask.is_floating_point():
        raise ValueError(
            f"{name} got a mask of {str(mask.dtype).removeprefix('torch.')}, which is added to scores that a linear attention "
            "never forms: pass one of bool or integers, 1 where the token counts"
        )
    if mask.shape[1] != keys or (queries != keys and not cross):
        raise ValueError(
            f"{name} got a mask for {mask.shape[1]} keys that the model put together itself, for {queries} queries and {keys} "
            "keys: what it leaves out is not known here, so this model keeps softmax: attn_implementation='sdpa'"
        )


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
    if stretches.holders is not None:
        raise ValueError(
            "position_ids restart, which means packed sequences; where a process has a stretch of them (lln.parallel), "
            "pass their boundaries in the whole as cu_seq_lens_q and cu_seq_lens_k"
        )
    starts = torch.cat([torch.ones_like(starts[:, :1]), starts], dim=1).expand(batch, -1)
    edges = starts.flatten().nonzero().flatten()
    return torch.cat([edges, edges.new_tensor([batch * length])])
