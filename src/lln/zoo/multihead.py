"""Multi-head attention around any mechanism: out = concat_h(mechanism(x Wq, x Wk, x Wv)) Wo."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.zoo.card import Card, refuse_unsupported
from lln.zoo.mechanism import Mechanism, Shape


class MultiHead(nn.Module):
    """x (B, N, E) -> (B, N, E). One product projects to q, k and v (or to q = k and v) of all heads."""

    def __init__(self, mechanism: Mechanism, shape: Shape, card: Card) -> None:
        super().__init__()
        self.shape = shape
        self.card = card
        self.mechanism = mechanism
        self.project_in = nn.Linear(shape.embed_dim, (2 if mechanism.shared_qk else 3) * shape.embed_dim)
        self.project_out = nn.Linear(shape.embed_dim, shape.embed_dim)

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
        context: Tensor | None = None,
    ) -> Tensor:
        """`context` (B, M, E), where given, supplies the keys and values; the padding mask is then the context's."""
        x, context = self._checked(x, key_mask, is_causal, context)
        q, k, v = self.heads(x, context)
        query_mask = self._query_mask(x, key_mask, context)
        inputs = {"inputs": x} if self.mechanism.needs_inputs else {}
        out = self.mechanism(q, k, v, key_mask, query_mask, is_causal, **inputs)  # (B, H, N, D)
        projected: Tensor = self.project_out(out.transpose(1, 2).flatten(2))
        return projected

    def dense(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
        context: Tensor | None = None,
    ) -> Tensor:
        """The attention matrix of every head (B, H, N, M)."""
        x, context = self._checked(x, key_mask, is_causal, context)
        q, k, _ = self.heads(x, context)
        return self.mechanism.dense(q, k, key_mask, self._query_mask(x, key_mask, context), is_causal)

    def _query_mask(self, x: Tensor, key_mask: Tensor | None, context: Tensor | None) -> Tensor | None:
        """Of a context only the keys are padded: every query counts, also where there are as many as keys."""
        if context is None or key_mask is None:
            return key_mask
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)

    def _checked(
        self, x: Tensor, mask: Tensor | None, is_causal: bool, context: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        refuse_unsupported(self.card, is_causal, context is not None)
        for name, tensor in (("x", x), ("context", context)):
            if tensor is not None and (tensor.ndim != 3 or tensor.shape[-1] != self.shape.embed_dim):
                raise ValueError(f"{name} must be (batch, length, {self.shape.embed_dim}), got {tuple(tensor.shape)}")
        keys = x if context is None else context
        if mask is not None and mask.shape == keys.shape[:2]:  # NaN in padding would reach the projection's gradient
            keys = keys.masked_fill(~mask[..., None], 0.0)
        return (keys, None) if context is None else (x, keys)

    def heads(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of all heads (B, H, N, D)."""
        embed, heads = self.shape.embed_dim, self.shape.num_heads
        if context is None:
            projected = self.project_in(x).unflatten(2, (-1, heads, self.shape.head_dim))  # (B, N, 2 or 3, H, D)
            parts = projected.permute(2, 0, 3, 1, 4).unbind()
            return parts[0], parts[-2], parts[-1]
        weight, bias = self.project_in.weight, self.project_in.bias
        q = F.linear(x, weight[:embed], bias[:embed]).unflatten(2, (heads, -1)).transpose(1, 2)
        kv = F.linear(context, weight[embed:], bias[embed:]).unflatten(2, (2, heads, -1))
        return q, *kv.permute(2, 0, 3, 1, 4).unbind()
