"""TransNormer: block-diagonal attention in the early layers, normalised linear attention in the late ones.

    branch="norm":  out = RMSNorm(f(q) (f(k)^T v)),    f = elu (T1) or elu + 1 (T2)
    branch="diag":  inside blocks, out = RMSNorm(relu(q k^T / sqrt d) v) (T1) or softmax(q k^T / sqrt d) v (T2)

Qin et al. 2022b, "The Devil in Linear Transformer", eqs. 12-14 and section 5.1: no denominator, hence bounded
gradients. The first half of the layers are "diag", the others "norm". Norm: time O(N d^2), memory O(N d); diag: time
O(N w d).
Departures: the paper's models also have gated linear units for feed-forward layers; here the encoder decides about
that.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from lln.attention import block_diagonal_attention
from lln.zoo import kernels
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.members.elu import feature as elu_plus_one
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    branch: Literal["diag", "norm"] = "norm"
    block_size: int = 64

    def __post_init__(self) -> None:
        if self.branch not in ("diag", "norm"):
            raise ValueError(f"branch must be 'diag' or 'norm', got {self.branch!r}")
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {self.block_size}")


def layer_options(layer: int, layers: int) -> dict[str, Any]:
    """DiagAttention in the first half of the layers, NormAttention in the others."""
    return {"branch": "diag" if layer < layers // 2 else "norm"}


class WidthNorm(nn.Module):
    """RMSNorm over all heads together: (B, H, N, D) -> the same. Zeros stay zeros."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-8)

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm
        normed = F.rms_norm(x.transpose(1, 2).flatten(2), norm.normalized_shape, norm.weight.to(x.dtype), norm.eps)
        return normed.unflatten(2, (x.shape[1], -1)).transpose(1, 2)


class Transnormer(Mechanism):
    """What T1 and T2 share."""

    anchored = True

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        self.norm = WidthNorm(shape.embed_dim)

    def feature(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def blocks(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        raise NotImplementedError

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        if self.options.branch == "diag":
            return self.blocks(q, k, v, key_mask, is_causal)
        fq, fk = self.feature(q), kernels.only_keys_that_count(self.feature(k), key_mask)
        mixed: Tensor = self.norm((kernels.causal_product if is_causal else kernels.product)(fq, fk, v))
        return mixed


def card(name: str, title: str, equation: str) -> Card:
    return Card(
        name=name,
        title=title,
        reference="Qin et al. 2022b",
        equation=equation,
        time="N d²",
        memory="N d",
        growth="linear",
        causal=True,
        learned=True,
        departures="The feed-forward layers are the encoder's, not gated linear units.",
    )


@register(
    card(
        "transnormer_t1",
        "TransNormer T1",
        "RMSNorm(elu(q) (elu(k)ᵀ v)); early layers RMSNorm(relu(q kᵀ/√d) v) in blocks",
    ),
    Options,
    layer_options,
)
class TransnormerT1(Transnormer):
    def feature(self, x: Tensor) -> Tensor:
        return F.elu(x)

    def blocks(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        length, size = q.shape[2], min(self.options.block_size, q.shape[2])
        q, k, v = (kernels.in_chunks(x, size) for x in (q, k, v))  # (B, H, G, w, D)
        # A masked key is zero, and so is its weight.
        scores = F.relu(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5)
        out = (scores.tril() if is_causal else scores) @ v
        mixed: Tensor = self.norm(out.flatten(2, 3)[:, :, :length])
        return mixed


@register(
    card("transnormer_t2", "TransNormer T2", "RMSNorm(f(q) (f(k)ᵀ v)), f = elu + 1; early layers softmax in blocks"),
    Options,
    layer_options,
)
class TransnormerT2(Transnormer):
    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        if options.branch == "diag":
            del self.norm  # softmax needs none

    def feature(self, x: Tensor) -> Tensor:
        return elu_plus_one(x)

    def blocks(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        return block_diagonal_attention(
            q, k, v, block_size=self.options.block_size, key_mask=key_mask, is_causal=is_causal
        )
