"""Attention with one feature f of queries and keys, and, where f acts element by element, with f of their products.

    out_i = sum_j s_ij v_j / sum_j s_ij,    s_ij = f(q_i).f(k_j)    O(N d^2) time, O(N d) memory
                                     or     s_ij = f(q_i.k_j)       O(N^2 d) time, O(N^2) memory

Rows whose weights are all zero give zeros.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from lln.zoo import kernels
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism


class FeatureKernel(Mechanism):
    """s_ij = f(q_i).f(k_j); a member supplies f."""

    def feature(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        return kernels.normalised(self.feature(q), self.feature(k), v, key_mask, is_causal)

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        return kernels.matrix(self.feature(q), self.feature(k), key_mask, is_causal)


@dataclass(frozen=True)
class FormOptions:
    form: Literal["linear", "kernel"] = "linear"

    def __post_init__(self) -> None:
        if self.form not in ("linear", "kernel"):
            raise ValueError(f"form must be 'linear' or 'kernel', got {self.form!r}")


class KernelWithLinearForm(FeatureKernel):
    """form="linear": s_ij = f(q_i).f(k_j);  form="kernel": s_ij = f(q_i.k_j)."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        if self.options.form == "kernel":
            return self.matrix(q, k, key_mask, query_mask, is_causal) @ v
        return super().attend(q, k, v, key_mask, query_mask, is_causal)

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        if self.options.form == "kernel":
            return kernels.normalised_rows(self.feature(q @ k.transpose(-1, -2)), key_mask, is_causal)
        return super().matrix(q, k, key_mask, query_mask, is_causal)


def card(name: str, title: str, reference: str, equation: str) -> Card:
    """What follows from being a `FeatureKernel`: linear, causal if asked, equivariant, with a matrix."""
    return Card(
        name=name,
        title=title,
        reference=reference,
        equation=equation,
        time="N d²",
        memory="N d",
        growth="linear",
        causal=True,
        cross=True,
        dense=True,
        equivariant=True,
    )
