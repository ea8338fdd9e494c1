"""A small model to train while a probe watches: an encoder of bytes after RoBERTa."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln_lab.experiments.tiny_data import VOCABULARY


class SoftmaxLayer(nn.Module):
    """A post-norm encoder layer with softmax attention, as RoBERTa has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, N, D) each
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(attended))
        return self.norm2(x + self.feed_forward(x))


class ByteEncoder(nn.Module):
    """Guesses hidden bytes. One head a layer by default, as in Figure 1."""

    def __init__(self, layers: int, width: int, length: int, heads: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(SoftmaxLayer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)
        # RoBERTa's initialisation: small weights, so training starts hot (high temperature, uniform attention).
        self.apply(_small_weights)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embedding(tokens) + self.position[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def _small_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
