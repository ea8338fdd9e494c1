"""Small models of the kinds people bring: torch's own layers, and attention written with scaled_dot_product_attention."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention  # under a name of its own, as many files have it


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        merged: Tensor = self.out(out.transpose(1, 2).flatten(2))
        return merged


class Blocks(nn.Module):
    """A stack of home-made transformer blocks."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2, causal: bool = False) -> None:
        super().__init__()
        self.attention = nn.ModuleList([Attention(width, heads, causal) for _ in range(layers)])
        self.feed = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(layers)]
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for attention, feed in zip(self.attention, self.feed, strict=True):
            x = x + attention(F.layer_norm(x, x.shape[-1:]), mask)
            x = x + feed(F.layer_norm(x, x.shape[-1:]))
        return x


class TwoInOne(nn.Module):
    """One module that computes attention twice in a pass: inside the sequence, and across to a context."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.qkv = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(context).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def torch_encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def batches(count: int = 2, length: int = 80, width: int = 32) -> list[Tensor]:
    return list(torch.randn(count, 3, length, width, generator=torch.Generator().manual_seed(1)))
