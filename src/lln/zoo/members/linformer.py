"""Linformer: softmax attention to a fixed number of learned mixtures of the keys.

    out = softmax(q (E k)^T / sqrt d) (F v),    E, F in R^(r x N)

Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", eq. 7. Time O(N r d), memory O(N d).
Departures: inputs shorter than max_length use the first columns of E and F; positions count from the first key that
counts, and masked keys and values enter the mixtures as zeros.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lln.zoo.card import Card
from lln.zoo.kernels import only_keys_that_count
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.registry import register
from lln.zoo.scores import softmax_attention, softmax_matrix


@dataclass(frozen=True)
class Options:
    projected_length: int = 256  # r
    sharing: Literal["none", "heads", "keys_and_values"] = "heads"  # what shares E and F (section 4)

    def __post_init__(self) -> None:
        if self.projected_length < 1:
            raise ValueError(f"projected_length must be at least 1, got {self.projected_length}")
        if self.sharing not in ("none", "heads", "keys_and_values"):
            raise ValueError(f"sharing must be 'none', 'heads' or 'keys_and_values', got {self.sharing!r}")


@register(
    Card(
        name="linformer",
        title="Linformer",
        reference="Wang et al. 2020",
        equation="softmax(q (E k)ᵀ / √d) (F v), E and F learned",
        time="N r d",
        memory="N d",
        growth="linear",
        cross=True,
        fixed_length=True,
        dense=True,
        learned=True,
    ),
    Options,
)
class Linformer(Mechanism):
    anchored = True

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        rows = min(options.projected_length, shape.longest)
        copies = shape.num_heads if options.sharing == "none" else 1
        self.project_keys = nn.Parameter(torch.empty(copies, rows, shape.longest))
        self.project_values = nn.Parameter(torch.empty(copies, rows, shape.longest))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New projections. Where keys and values share theirs, they do again: `to_empty` gives them one each."""
        deviation = self.project_keys.shape[1] ** -0.5
        nn.init.normal_(self.project_keys, std=deviation)
        if self.options.sharing == "keys_and_values":
            self.project_values = self.project_keys
        else:
            nn.init.normal_(self.project_values, std=deviation)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        length = k.shape[2]
        keys = self.project_keys[:, :, :length].to(k.dtype) @ k  # (B, H, r, D)
        values = self.project_values[:, :, :length].to(v.dtype) @ v
        return softmax_attention(q, keys, values, None)

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        length = k.shape[2]
        keys = self.project_keys[:, :, :length] @ k
        everything = torch.ones(1, 1, q.shape[2], keys.shape[2], dtype=torch.bool, device=q.device)
        mixed = softmax_matrix(q, keys, everything) @ self.project_values[:, :, :length]  # (B, H, Nq, Nk)
        return only_keys_that_count(mixed.transpose(-1, -2), key_mask).transpose(-1, -2)
