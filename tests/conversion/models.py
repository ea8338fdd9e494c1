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


class ViT(nn.Module):
    """A vision transformer of torch's own layers: patches, a class token, positions, nn.TransformerEncoder."""

    def __init__(self, size: int = 32, patch: int = 4, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, batch_first=True, norm_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.position
        scores: Tensor = self.head(self.encoder(x)[:, 0])
        return scores


class LikeTimm(nn.Module):
    """The attention and block of timm's vision transformer, for where timm cannot be installed: qkv in one, norms of q and k,
    the scale left to scaled_dot_product_attention, layer scale on both branches."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ls1, self.ls2 = (nn.Parameter(torch.full((width,), 0.1)) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1 * self.attn(self.norm1(x))
        return x + self.ls2 * self.mlp(self.norm2(x))
