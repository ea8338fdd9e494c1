"""The ReLU kernel and its linear counterpart.

    form="linear":  out_i = sum_j relu(q_i).relu(k_j) v_j / sum_j relu(q_i).relu(k_j)
    form="kernel":  out_i = sum_j relu(q_i.k_j) v_j / sum_j relu(q_i.k_j)

Two of the kernels of Figure 2 in arXiv 2311.13541. The linear form takes O(N d^2) time and O(N d) memory, the kernel
O(N^2 d) and O(N^2).
Departures: none. Rows whose weights are all zero give zeros.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from lln.zoo import kernels
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    form: Literal["linear", "kernel"] = "linear"

    def __post_init__(self) -> None:
        if self.form not in ("linear", "kernel"):
            raise ValueError(f"form must be 'linear' or 'kernel', got {self.form!r}")


@register(
    Card(
        name="relu",
        title="ReLU kernel",
        reference="Figure 2 of arXiv 2311.13541",
        equation="relu(q) (relu(k)ᵀ v) / relu(q) relu(k)ᵀ 1",
        time="N d²",
        memory="N d",
        growth="linear",
        causal=True,
        cross=True,
        dense=True,
        equivariant=True,
    ),
    Options,
)
class Relu(Mechanism):
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        if self.options.form == "kernel":
            return self.matrix(q, k, key_mask, query_mask, is_causal) @ v
        return kernels.normalised(F.relu(q), F.relu(k), v, key_mask, is_causal)

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        if self.options.form == "kernel":
            return kernels.normalised_rows(F.relu(q @ k.transpose(-1, -2)), key_mask, is_causal)
        return kernels.matrix(F.relu(q), F.relu(k), key_mask, is_causal)
