"""An encoder with any member as its attention; everything else, and the number of weights, is as in the softmax encoder.

    x <- x + attention(norm(x)),    x <- x + W2 gelu(W1 norm(x))
    or, for members that replace both, x <- x + layer(x)

The feed-forward layer is narrower for members with more weights and wider for members with fewer, so that every encoder has
as many weights as the one with softmax. If a member's own weights exceed those of the feed-forward layer (Linformer at great
lengths), the layer keeps its width and the encoder is larger.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lln.zoo import registry


class EncoderLayer(nn.Module):
    """One layer."""

    def __init__(self, attention: nn.Module, embed_dim: int, feed_forward: int, whole: bool) -> None:
        super().__init__()
        self.attention = attention
        self.whole = whole
        if not whole:
            self.norm_attention, self.norm_feed_forward = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
            self.widen, self.narrow = nn.Linear(embed_dim, feed_forward), nn.Linear(feed_forward, embed_dim)

    def forward(self, x: Tensor, key_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if self.whole:
            whole: Tensor = x + self.attention(x, key_mask, is_causal)
            return whole
        x = x + self.attention(self.norm_attention(x), key_mask, is_causal)
        mixed: Tensor = x + self.narrow(F.gelu(self.widen(self.norm_feed_forward(x))))
        return mixed


class Encoder(nn.Module):
    """`layers` layers with the named member; x (B, N, E) -> (B, N, E).

    `is_causal=None` stands for False, and for True with members that have nothing else.
    """

    def __init__(
        self,
        name: str,
        *,
        embed_dim: int,
        num_heads: int,
        feed_forward: int,
        layers: int,
        max_length: int,
        match_parameters: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        shape = {"embed_dim": embed_dim, "num_heads": num_heads, "max_length": max_length}
        built = []
        for layer in range(layers):
            chosen = {**registry.layer_options(name, layer, layers), **options}
            attention = registry.build(name, **shape, **chosen)
            width = matched_width(attention, embed_dim, feed_forward) if match_parameters else feed_forward
            built.append(EncoderLayer(attention, embed_dim, width, registry.card(name).replaces_feed_forward))
        self.layers = nn.ModuleList(built)
        self.only_causal = not registry.card(name).bidirectional
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, x: Tensor, key_mask: Tensor | None = None, is_causal: bool | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, key_mask, self.only_causal if is_causal is None else is_causal)
        normed: Tensor = self.norm(x)
        return normed


def matched_width(attention: nn.Module, embed_dim: int, feed_forward: int) -> int:
    """The feed-forward width that gives a layer the weights of a softmax layer; unchanged where none would."""
    softmax = 4 * embed_dim * (embed_dim + 1)
    extra = count_parameters(attention) - softmax
    width = feed_forward - round(extra / (2 * embed_dim + 1))
    return width if width >= feed_forward // 2 else feed_forward


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
