"""Every member, and every form of it that has an equation of its own, at a size where its structure shows."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import lln.zoo
from lln.zoo.multihead import MultiHead

EMBED, HEADS, LONGEST = 8, 2, 32


@dataclass(frozen=True)
class Variant:
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    only_causal: bool = False

    def __str__(self) -> str:
        said = [f"{key}={value}" for key, value in self.options.items() if isinstance(value, str | bool)]
        return "-".join([self.name, *said])

    @property
    def card(self) -> lln.zoo.Card:
        return lln.zoo.card(self.name)

    @property
    def causalities(self) -> list[bool]:
        return [True] if self.only_causal else [False, True] if self.card.causal else [False]

    @property
    def cross(self) -> bool:
        return self.card.cross and not self.only_causal and "convolution" not in self.options

    @property
    def is_layer(self) -> bool:
        return self.card.replaces_feed_forward

    def build(self, max_length: int = LONGEST, embed_dim: int = EMBED, num_heads: int = HEADS) -> nn.Module:
        return lln.zoo.build(
            self.name, embed_dim=embed_dim, num_heads=num_heads, max_length=max_length, **self.options
        ).double()


SMALL: dict[str, list[dict[str, Any]]] = {
    "agent": [{"agents": 4}],
    "block_diagonal": [{"block_size": 4}],
    "flash": [{"chunk": 4, "shared_dim": 6, "units": 2}],
    "gated_delta": [{"gate": "head"}, {"gate": "feature"}],
    "linformer": [{"projected_length": 5, "sharing": s} for s in ("heads", "none", "keys_and_values")],
    "lln": [{}, {"target": "variance", "subtract_mean_key": True}],
    "lln_diag": [{"block_size": 4}, {"block_size": 4, "mix": 0.3, "target": "variance"}],
    "lolcats": [{"window": 3}],
    "longformer": [{"window": 4, "global_tokens": 2}],
    "mhla": [{"blocks": 8}],
    "near_far": [{"block_size": 4}, {"block_size": 3, "neighbours": 1, "first_tokens": 2, "target": "variance"}],
    "nystromformer": [{"landmarks": 4}, {"landmarks": 4, "convolution": 3, "iterations": 8}],
    "performer": [{"features": 8}],
    "polaformer": [{"form": "polaformer"}, {"form": "nalaformer"}],
    "quadratic": [{"form": "linear"}, {"form": "kernel"}],
    "reformer": [{"chunk": 4, "rounds": 3}],
    "relu": [{"form": "linear"}, {"form": "kernel"}],
    "rfa": [{"features": 32}],
    "skyformer": [{"landmarks": 6}],
    "sla": [{"block_size": 2, "top": 0.3, "bottom": 0.2}],
    "tnn": [{"encoder_dim": 4, "encoder_layers": 1}],
    "transformer_ls": [{"window": 4, "projections": 3}],
    "transnormer_t1": [{"branch": "norm"}, {"branch": "diag", "block_size": 4}],
    "transnormer_t2": [{"branch": "norm"}, {"branch": "diag", "block_size": 4}],
}

VARIANTS = [
    Variant(name, options, only_causal=not lln.zoo.card(name).bidirectional)
    for name in lln.zoo.names()
    for options in SMALL.get(name, [{}])
]
VARIANTS.append(Variant("rfa", {"features": 32, "gate": True}, only_causal=True))
MECHANISMS = [v for v in VARIANTS if not v.is_layer]


def masks(batch: int, length: int) -> dict[str, Tensor | None]:
    """Padding right, left, in holes, and a sample in which nothing counts."""
    position = torch.arange(length)
    keep = torch.tensor([max(1, length - 3 * b) for b in range(batch)])[:, None]
    holes = (position[None] * 7 + torch.arange(batch)[:, None]) % 5 != 0
    nothing = torch.ones(batch, length, dtype=torch.bool)
    nothing[0] = False
    return {"none": None, "right": position < keep, "left": position >= length - keep, "holes": holes, "empty": nothing}


def sample(batch: int = 3, length: int = 13) -> Tensor:
    return torch.randn(batch, length, EMBED, dtype=torch.float64)


def heads_of(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as the layer projects them."""
    assert isinstance(module, MultiHead)
    return module.heads(x)
