"""Linear attention with ELU + 1.

    out_i = sum_j f(q_i).f(k_j) v_j / sum_j f(q_i).f(k_j),    f(x) = elu(x) + 1

Katharopoulos et al. 2020, "Transformers are RNNs", eqs. 4-7. Time O(N d^2), memory O(N d).
Departures: none. (f underflows below about -87 in float32; a row whose features are all zero gives zeros.)
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lln.zoo.feature_kernel import FeatureKernel, card
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    """ELU attention has no options."""


@register(
    card(
        name="elu",
        title="Linear attention, ELU + 1",
        reference="Katharopoulos et al. 2020",
        equation="f(q) (f(k)ᵀ v) / f(q) f(k)ᵀ 1, f = elu + 1",
    ),
    Options,
)
class Elu(FeatureKernel):
    def feature(self, x: Tensor) -> Tensor:
        return feature(x)


class EluPlusOne(torch.autograd.Function):
    """f(x) = exp(min(x, 0)) + max(x, 0), with f' = min(f, 1).

    Computed so because elu's (exp(x) - 1) + 1 rounds small features away, and as one step because autograd would keep
    four tensors for it where the result is enough.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        f = x.clamp(max=0.0).exp_().add_(x.clamp(min=0.0))
        ctx.save_for_backward(f)
        return f

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (f,) = ctx.saved_tensors
        slope: Tensor = grad * f.clamp(max=1.0)
        return slope


def feature(x: Tensor) -> Tensor:
    """elu(x) + 1."""
    f: Tensor = EluPlusOne.apply(x)
    return f
