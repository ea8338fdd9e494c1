"""Calls of the native kernel with random inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lln.ops.lln import Operands, native


@dataclass
class Call:
    """Arguments of the operator, and the gradient that comes back."""

    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor
    beta: Tensor
    bias: Tensor
    grad: Tensor
    causal: bool
    key_mask: Tensor | None = None

    @property
    def operands(self) -> Operands:
        parameters = (self.alpha, self.beta, self.bias)
        return Operands(self.q, self.k, self.v, *parameters, self.key_mask, is_causal=self.causal)

    def forward(self, start: tuple[Tensor, ...] = ()) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        begin = dict(zip(("start_maximum", "start_summed", "start_normaliser"), start, strict=False))
        return tuple(native.forward(self.operands._replace(**begin)))

    def backward(self) -> tuple[Tensor, ...]:
        wanted = ("q", "k", "v", "alpha", "beta", "bias")
        grads = {"out": self.grad, "summed": None, "normaliser": None}
        found = native.backward(grads, native.forward(self.operands), self.operands, set(wanted))
        return tuple(found[name] for name in wanted)

    def rows(self, at: slice) -> "Call":
        cut = (x[:, :, at] for x in (self.q, self.k, self.v))
        mask = None if self.key_mask is None else self.key_mask[:, at]
        return Call(*cut, self.alpha, self.beta, self.bias, self.grad[:, :, at], self.causal, mask)


def random_call(
    length: int, causal: bool, *, heads: int = 1, groups: int = 1, dim: int = 16, value_dim: int = 16, seed: int = 0
) -> Call:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return Call(
        normal(1, heads * groups, length, dim),
        normal(1, heads, length, dim),
        normal(1, heads, length, value_dim),
        1 + 0.3 * normal(1, heads * groups, dim),
        1 + 0.3 * normal(1, heads, dim),
        normal(1, heads * groups, dim),
        normal(1, heads * groups, length, value_dim),
        causal,
    )
