"""torch.nn.MultiheadAttention taken apart: the same weights under the same names, and attention by a call that can be replaced.

torch's module computes everything inside one function. This one has its parameters (shared, not copied, so that a state dict
stays what it was) and calls `scaled_dot_product_attention` itself.
"""

from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.nested import nested, padded


class OpenMultiheadAttention(nn.Module):
    """Computes what `mha` computes, without returning weights."""

    # What torch.nn.TransformerEncoderLayer looks at before it takes a fused path, which would not call this module.
    _qkv_same_embed_dim = False
    in_proj_weight: nn.Parameter
    q_proj_weight: nn.Parameter
    k_proj_weight: nn.Parameter
    v_proj_weight: nn.Parameter
    in_proj_bias: nn.Parameter | None
    out_proj: nn.Module

    def __init__(self, mha: nn.MultiheadAttention) -> None:
        super().__init__()
        refuse_extras(mha)
        self.embed_dim, self.num_heads, self.head_dim = mha.embed_dim, mha.num_heads, mha.head_dim
        self.dropout, self.batch_first, self.training = mha.dropout, mha.batch_first, mha.training
        self.joined = mha._qkv_same_embed_dim
        for name, parameter in mha.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        if mha.in_proj_bias is None:
            self.register_parameter("in_proj_bias", None)
        self.out_proj = mha.out_proj

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """As torch.nn.MultiheadAttention, with None for the weights, which are never formed, whether asked for or not."""
        if query.is_nested:
            rows, padding = padded(query, key, value, key_padding_mask, self.batch_first)
            return nested(self(rows, rows, rows, padding, attn_mask=attn_mask)[0], query), None
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0 if self.batch_first else 1) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in self._projected(query, key, value))
        mask = self._mask(attn_mask, key_padding_mask, q)
        out = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0)
        joined = self.out_proj(out.transpose(1, 2).flatten(2))
        if not self.batch_first:
            joined = joined.transpose(0, 1)
        return joined if batched else joined.squeeze(0 if self.batch_first else 1), None

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        if self.joined:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))

    @staticmethod
    def _mask(attn_mask: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
        """torch's masks (True, or a negative number, where a key does not count) as scaled_dot_product_attention has them."""
        mask = None if attn_mask is None else _allowed(attn_mask)
        if mask is not None and mask.dim() == 3:  # one for each sample and head
            mask = mask.unflatten(0, (q.shape[0], -1))
        if padding is None:
            return mask
        keys = _allowed(padding)[:, None, None]
        if mask is None:
            return keys
        if mask.dtype == keys.dtype == torch.bool:
            return mask & keys
        return _additive(mask, q) + _additive(keys, q)


def refuse_extras(mha: nn.MultiheadAttention) -> None:
    """Keys that are not there to be seen cannot be replaced."""
    if mha.bias_k is not None or mha.add_zero_attn:
        raise ValueError("it adds keys of its own (add_bias_kv or add_zero_attn)")


def _allowed(mask: Tensor) -> Tensor:
    return ~mask if mask.dtype == torch.bool else mask


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(~mask, -torch.inf)


def open_up(model: nn.Module, keep: Collection[str] = ()) -> tuple[dict[str, nn.MultiheadAttention], dict[str, str]]:
    """Put an `OpenMultiheadAttention` in the place of each of torch's; those that were there, by path, and why others stay.

    A module that stands in several places stays one module. keep: paths to pass over.
    """
    everywhere = list(model.named_modules(remove_duplicate=False))
    kept = {id(module) for path, module in everywhere if path in keep}
    found = {
        path: module
        for path, module in everywhere
        if type(module) is nn.MultiheadAttention and path and id(module) not in kept
    }
    opened: dict[int, OpenMultiheadAttention] = {}
    closed: dict[str, str] = {}
    for path, module in list(found.items()):
        try:
            put(model, path, opened.setdefault(id(module), OpenMultiheadAttention(module)))
        except ValueError as reason:
            closed[path] = str(reason)
            del found[path]
    return found, closed


def put(model: nn.Module, path: str, module: Any) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
