"""Longformer: a sliding window and a few global tokens.

    out_i = sum_{j in S_i} softmax_j(q_i.k_j / sqrt d) v_j,    S_i = {j: |i - j| <= w/2 or i or j is global}

Beltagy et al. 2020, "Longformer: The Long-Document Transformer", section 3.1. Time O(N w d), memory O(N d) and an O(N
w) mask.
Departures: global tokens are the first `global_tokens` that count, and share the projections of the others (the paper
starts theirs from the same weights); windows are not dilated.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism
from lln.zoo.registry import register
from lln.zoo.scores import softmax_attention, softmax_matrix
from lln.zoo.windows import from_segments, window_mask, window_positions, windows


@dataclass(frozen=True)
class Options:
    window: int = 512  # w, both sides together
    global_tokens: int = 1

    def __post_init__(self) -> None:
        if self.window < 2 or self.window % 2 or self.global_tokens < 0:
            raise ValueError(
                f"window must be even and >= 2 and global_tokens >= 0, got {self.window} and {self.global_tokens}"
            )


@register(
    Card(
        name="longformer",
        title="Longformer",
        reference="Beltagy et al. 2020",
        equation="softmax over |i − j| ≤ w/2 and global tokens",
        time="N w d",
        memory="N (d + w)",
        growth="linear",
        causal=True,
        dense=True,
        departures="Global tokens are the first ones and share the others' projections; no dilation.",
    ),
    Options,
)
class Longformer(Mechanism):
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        batch, heads, length, _ = q.shape
        half = self.options.window // 2
        segment = min(half, length)  # any segment will do; this one wastes the least
        at, exists = self._global_positions(q, key_mask)  # (B, g)
        queries, keys = window_positions(length, segment, half, q.device)
        near = ((queries - keys).abs() <= half) & window_mask(key_mask, length, segment, half, q.device)
        own_column = torch.where(exists, at, -1)[:, None, None, None]  # (B, 1, 1, 1, g)
        near = near & ~(keys[..., None] == own_column).any(dim=-1)
        far = exists[:, None, None, :].expand(-1, near.shape[1], segment, -1)
        if is_causal:
            near, far = near & (keys <= queries), far & (at[:, None, None, :] <= queries)
        allowed = torch.cat([near, far], dim=-1).expand(batch, -1, -1, -1).flatten(0, 1)[:, None]

        def with_global(x: Tensor) -> Tensor:
            chosen = x.gather(2, at[:, None, :, None].expand(batch, heads, -1, x.shape[3]))  # (B, H, g, D)
            local = windows(x, segment, half)  # (B, G, H, K, D)
            return torch.cat([local, chosen[:, None].expand(-1, local.shape[1], -1, -1, -1)], dim=3).flatten(0, 1)

        segments = windows(q, segment, 0).flatten(0, 1)  # (B G, H, segment, D)
        out = softmax_attention(segments, with_global(k), with_global(v), allowed)
        out = from_segments(out.unflatten(0, (batch, -1)), length)
        return self._global_rows(out, q, k, v, key_mask, at, exists, is_causal) if at.shape[1] else out

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        position = torch.arange(q.shape[2], device=q.device)
        at, exists = self._global_positions(q, key_mask)
        is_global = ((position[None, :, None] == at[:, None, :]) & exists[:, None, :]).any(dim=-1)  # (B, N)
        distance = position[:, None] - position[None, :]
        allowed = (distance.abs() <= self.options.window // 2) | is_global[:, :, None] | is_global[:, None, :]
        if is_causal:
            allowed = allowed & (distance >= 0)
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, :]
        return softmax_matrix(q, k, allowed[:, None])

    def _global_positions(self, q: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Positions of the global tokens and which exist, (B, g) each; the others get the last position."""
        batch, _, length, _ = q.shape
        number = torch.arange(min(self.options.global_tokens, length), device=q.device).expand(batch, -1)
        if key_mask is None:
            return number, torch.ones_like(number, dtype=torch.bool)
        counted = key_mask.cumsum(dim=1)
        at = torch.searchsorted(counted, number.contiguous() + 1)
        exists = at < length
        return at.clamp(max=length - 1), exists

    def _global_rows(
        self,
        out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        at: Tensor,
        exists: Tensor,
        is_causal: bool,
    ) -> Tensor:
        """Replace the rows of global tokens by attention to everything."""
        index = at[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
        allowed = None if key_mask is None else key_mask[:, None, None, :]
        if is_causal:
            past = torch.arange(k.shape[2], device=q.device) <= at[:, None, :, None]
            allowed = past if allowed is None else allowed & past
        rows = softmax_attention(q.gather(2, index), k, v, allowed)  # (B, H, g, Dv)
        rows = rows.masked_fill(~exists[:, None, :, None], 0.0)
        placed = torch.zeros_like(out).scatter_add(2, at[:, None, :, None].expand_as(rows), rows)
        is_global = torch.zeros_like(out[:, 0, :, 0], dtype=torch.int8).scatter_add(1, at, exists.to(torch.int8)) > 0
        return torch.where(is_global[:, None, :, None], placed, out)
