"""What a converted attention module knows of its own: alpha, beta, feature bias, mixing or weights, and maps of q and k.

    P_ij ∝ sum_l exp(w_l + alpha_l (A_q^T q_i)_l + beta_l (A_k^T k_j)_l)                            (eq. 8)
    out  = w LLN + (1 - w) blocks, w from mix by `lln.hf.attention.far_weight`                              (Section 4.2)

or, in near-far attention (docs/near-far.md), near, LLN, mean and slope by the four `weights` of each head.

w carries the mean key that is subtracted (w = -beta mu) and any learned shift of q or k. They are parameters of the
model: saved with it, and frozen until somebody wants to train them. They are float32 whatever the model's dtype, in memory
and on disk: rounded to bfloat16 they would be another model.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lln.near_far import NEUTRAL


@dataclass(frozen=True)
class LayerShape:
    """What has to be known of one attention module to give it its parameters before its weights are loaded."""

    heads: int
    key_heads: int
    head_dim: int
    per_feature: bool = False  # alpha and beta have a number per head and feature, not just per head
    maps: bool = False  # q and k go through a linear map per head first
    near_far: bool = False  # four weights a head of near-far attention in place of the mixing of LLN+Diag


class LLNParameters(nn.Module):
    """The submodule `lln` of a converted attention module.

    alpha (Hq, 1 or D), beta (Hk, 1 or D), feature_bias (Hq, D), mix (Hq,); with maps, query_map (Hq, D, D) and
    key_map (Hk, D, D), which multiply q and k from the right in the LLN branch only and start as identities. Near-far
    attention has weights (Hq, 4) in place of mix.
    """

    mix: Tensor | None
    weights: Tensor | None
    query_map: Tensor | None
    key_map: Tensor | None

    def __init__(self, shape: LayerShape, mix: float = 0.5) -> None:
        super().__init__()
        self.shape, self.first_mix = shape, float(mix)
        self.mean_key: Tensor | None = None  # what feature_bias was made of, while fitting
        self.fit_error: Tensor | None = None  # (Hq,), of the closed-form fit; not saved
        features = shape.head_dim if shape.per_feature else 1
        self.alpha = _frozen(shape.heads, features)
        self.beta = _frozen(shape.key_heads, features)
        self.feature_bias = _frozen(shape.heads, shape.head_dim)
        self.mix = None if shape.near_far else _frozen(shape.heads)
        self.weights = _frozen(shape.heads, len(NEUTRAL)) if shape.near_far else None
        self.query_map = self.key_map = None
        if shape.maps:
            self.query_map = _frozen(shape.heads, shape.head_dim, shape.head_dim)
            self.key_map = _frozen(shape.key_heads, shape.head_dim, shape.head_dim)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, keep: Collection[str] = ()) -> None:
        """As before anything was measured: alpha and beta 1, no bias, mixing as given, weights neutral, maps the identity.

        keep: names of those that stay as they are.
        """
        self.mean_key = self.fit_error = None
        start: dict[str, Any] = {
            "alpha": 1.0,
            "beta": 1.0,
            "feature_bias": 0.0,
            "mix": self.first_mix,
            "weights": NEUTRAL,
        }
        for name, x in self.named_parameters():
            if name in keep:
                continue
            if name in start:
                x.copy_(torch.tensor(start[name]).to(x))
            else:
                x.copy_(torch.eye(self.shape.head_dim, dtype=x.dtype, device=x.device))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "LLNParameters":
        """Follow the model to another device, to float64 and back, but not to half precision."""

        def keep_digits(x: Tensor) -> Tensor:
            moved = fn(x)
            return x.to(moved.device, torch.float32) if moved.is_floating_point() and moved.itemsize < 4 else moved

        super()._apply(keep_digits, recurse)
        return self

    def trainable(self, on: bool = True) -> "LLNParameters":
        """Let all of them learn, or freeze them."""
        return self.requires_grad_(on)

    @torch.no_grad()
    def set(self, **values: Tensor) -> None:
        """Write values, by name, that broadcast to the parameters; (H,) is taken as one number for each head."""
        for name, value in values.items():
            own = self._parameters.get(name)
            if own is None:
                raise ValueError(f"this layer has no {name} to set; it has: {', '.join(dict(self.named_parameters()))}")
            value = value[:, None] if value.dim() == 1 and own.dim() == 2 else value
            own.copy_(value.expand_as(own))

    def for_attention(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """alpha (1, Hq, 1, 1 or D), beta (1, Hk, 1, 1 or D) and feature bias (1, Hq, 1, D) as `lln_attention` takes them."""
        alpha, beta, bias = (x.to(dtype)[None, :, None] for x in (self.alpha, self.beta, self.feature_bias))
        return alpha, beta, bias

    def map_queries(self, q: Tensor) -> Tensor:
        """q (B, Hq, N, D) for the LLN branch."""
        return q if self.query_map is None else q @ self.query_map.to(q.dtype)

    def map_keys(self, k: Tensor) -> Tensor:
        """k (B, Hk, N, D) for the LLN branch."""
        return k if self.key_map is None else k @ self.key_map.to(k.dtype)

    def extra_repr(self) -> str:
        s = self.shape
        return f"heads={s.heads}, key_heads={s.key_heads}, head_dim={s.head_dim}, maps={s.maps}"


def _frozen(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.float32), requires_grad=False)
