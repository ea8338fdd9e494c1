"""PolaFormer: pairs of entries of equal and of opposite sign, each with half of the values, and learned powers.

    x+ = relu(x)^p,  x- = relu(-x)^p,    p = 1 + a sigmoid(w) per head and feature
    same_ij = q+_i.k+_j + q-_i.k-_j,     opposite_ij = q+_i.k-_j + q-_i.k+_j,     each row over its own sum
    out_i = [sum_j same_ij v_j^s, sum_j opposite_ij v_j^o] * g_i,    v = [v^s, v^o],  g = x W_g

with w (D per head) and the gate W_g learned; a = 4. With p = 1, same - opposite is q.k: nothing of the product is lost, only
its sign, which the gate can bring back.
Meng et al. 2025, "PolaFormer: Polarity-aware Linear Attention for Vision Transformers", arXiv 2501.15061. Time O(N d^2),
memory O(N d).
form="nalaformer" makes the power follow the length of the query, which plain linear attention forgets:

    q+- = relu(+-q/|q|)^(3 (1/2 + tanh |q|)),  k+- = relu(+-k)^3,    out_i = sum_j same_ij v_j / sum_j same_ij * silu(g_i)

Meng et al. 2025, "Norm x Direction: Restoring the Missing Query Norm in Vision Linear Attention" (NaLaFormer), arXiv
2506.21137, as in its published code.
Departures: no epsilon, no positions added to k or rotary ones, no learned scale of q and k, no convolution of v, no norm before
NaLaFormer's gate. A row whose weights of one kind are all zero gives zeros in that half.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.zoo import kernels
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    form: Literal["polaformer", "nalaformer"] = "polaformer"
    power_range: float = 4.0  # a: PolaFormer's powers are between 1 and 1 + a

    def __post_init__(self) -> None:
        if self.form not in ("polaformer", "nalaformer"):
            raise ValueError(f"form must be 'polaformer' or 'nalaformer', got {self.form!r}")
        if self.power_range < 0:
            raise ValueError(f"power_range must be at least 0, got {self.power_range}")


@register(
    Card(
        name="polaformer",
        title="PolaFormer, NaLaFormer",
        reference="Meng et al. 2025a, b",
        equation="[same vˢ, opposite vᵒ] ⊙ x W, same = q⁺k⁺ + q⁻k⁻, opposite = q⁺k⁻ + q⁻k⁺, x± = relu(±x)ᵖ",
        time="N d²",
        memory="N d",
        growth="linear",
        causal=True,
        learned=True,
        equivariant=True,
        departures="No epsilon, positions, learned scale, convolution or norm.",
        reproduced="Both kinds of pairs hold all of q·k; higher powers, and in NaLaFormer longer queries, lower the entropy.",
    ),
    Options,
)
class Polaformer(Mechanism):
    needs_inputs = True

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        if options.form == "polaformer":
            self.power_logit = nn.Parameter(torch.empty(shape.num_heads, 1, shape.head_dim))
        self.gate = nn.Linear(shape.embed_dim, shape.embed_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All powers in the middle of their range."""
        if self.options.form == "polaformer":
            nn.init.zeros_(self.power_logit)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        query_mask: Tensor | None,
        is_causal: bool,
        inputs: Tensor | None = None,
    ) -> Tensor:
        if inputs is None:
            raise ValueError("polaformer gates its output by the layer's input: call the layer, or pass inputs=x")
        weight, bias = self.gate.weight.to(q.dtype), self.gate.bias.to(q.dtype)
        gate = F.linear(inputs.to(q.dtype), weight, bias).unflatten(2, (self.shape.num_heads, -1)).transpose(1, 2)
        if self.options.form == "nalaformer":
            return kernels.normalised(norm_aware(q), signed_powers(k, 3.0), v, key_mask, is_causal) * F.silu(gate)
        fq, fk = self.features(q), self.features(k)
        swapped = torch.cat(fq.chunk(2, dim=-1)[::-1], dim=-1)
        same, opposite = v.tensor_split([(v.shape[-1] + 1) // 2], dim=-1)
        halves = [
            kernels.normalised(a, fk, b, key_mask, is_causal)
            for a, b in ((fq, same), (swapped, opposite))
            if b.shape[-1] > 0
        ]
        return torch.cat(halves, dim=-1) * gate

    def features(self, x: Tensor) -> Tensor:
        """PolaFormer's [x+, x-], (B, H, N, 2D)."""
        return signed_powers(x, 1 + self.options.power_range * torch.sigmoid(self.power_logit.to(x.dtype)))


def norm_aware(q: Tensor) -> Tensor:
    """NaLaFormer's [q+, q-], (B, H, N, 2D)."""
    return signed_powers(F.normalize(q, dim=-1), 3 * (0.5 + torch.tanh(q.norm(dim=-1, keepdim=True))))


def signed_powers(x: Tensor, power: Tensor | float) -> Tensor:
    """[relu(x)^p, relu(-x)^p], (B, H, N, 2D)."""
    return torch.cat([F.relu(x) ** power, F.relu(-x) ** power], dim=-1)
