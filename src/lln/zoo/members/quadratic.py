"""The quadratic kernel and its linear counterpart.

    form="linear":  out_i = sum_j q_i^2.k_j^2 v_j / sum_j q_i^2.k_j^2
    form="kernel":  out_i = sum_j (q_i.k_j)^2 v_j / sum_j (q_i.k_j)^2

Two of the kernels of Figure 2 in arXiv 2311.13541. The linear form takes O(N d^2) time and O(N d) memory, the kernel
O(N^2 d) and O(N^2).
Departures: none. Rows whose weights are all zero give zeros.
"""

from dataclasses import dataclass
from typing import Literal

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
        name="quadratic",
        title="Quadratic kernel",
        reference="Figure 2 of arXiv 2311.13541",
        equation="q² (k²ᵀ v) / q² k²ᵀ 1",
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
class Quadratic(Mechanism):
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        if self.options.form == "kernel":
            return self.matrix(q, k, key_mask, query_mask, is_causal) @ v
        return kernels.normalised(q.square(), k.square(), v, key_mask, is_causal)

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        if self.options.form == "kernel":
            return kernels.normalised_rows((q @ k.transpose(-1, -2)).square(), key_mask, is_causal)
        return kernels.matrix(q.square(), k.square(), key_mask, is_causal)
