"""What a converted attention module knows of its own: alpha, beta, feature bias, mixing, and maps of q and k.

    P_ij ∝ sum_l exp(w_l + alpha_l (A_q^T q_i)_l + beta_l (A_k^T k_j)_l)                            (eq. 8)
    out  = mix LLN + (1 - mix) blocks                                                             (Section 4.2)

w carries the mean key that is subtracted (w = -beta mu) and any learned shift of q or k. They are parameters of the
model: saved with it, and frozen until somebody wants to train them.
"""

import torch
from torch import Tensor, nn

from lln.hf.options import LayerShape


class LLNParameters(nn.Module):
    """The submodule `lln` of a converted attention module.

    alpha (Hq, 1 or D), beta (Hk, 1 or D), feature_bias (Hq, D), mix (Hq,); with maps, query_map (Hq, D, D) and
    key_map (Hk, D, D), which multiply q and k from the right in the LLN branch only and start as identities.
    """

    query_map: Tensor | None
    key_map: Tensor | None

    def __init__(self, shape: LayerShape, mix: float = 0.5) -> None:
        super().__init__()
        self.shape = shape
        self.mean_key: Tensor | None = None  # what feature_bias was made of, while fitting
        self.fit_error: Tensor | None = None  # (Hq,), of the closed-form fit; not saved
        features = shape.head_dim if shape.per_feature else 1
        self.alpha = _frozen(torch.ones(shape.heads, features))
        self.beta = _frozen(torch.ones(shape.key_heads, features))
        self.feature_bias = _frozen(torch.zeros(shape.heads, shape.head_dim))
        self.mix = _frozen(torch.full((shape.heads,), float(mix)))
        self.query_map = self.key_map = None
        if shape.maps:
            self.query_map = _frozen(torch.eye(shape.head_dim).repeat(shape.heads, 1, 1))
            self.key_map = _frozen(torch.eye(shape.head_dim).repeat(shape.key_heads, 1, 1))

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
        return k if self.key_map is None else k @ self.key_map.to(k.dtype)

    def mix_branches(self, global_: Tensor, local: Tensor | None) -> Tensor:
        """The output from those of the branches (B, Hq, N, D); without blocks LLN's alone."""
        return global_ if local is None else torch.lerp(local, global_, self.mix.to(local.dtype)[:, None, None])

    def extra_repr(self) -> str:
        s = self.shape
        return f"heads={s.heads}, key_heads={s.key_heads}, head_dim={s.head_dim}, maps={s.maps}"


def _frozen(x: Tensor) -> nn.Parameter:
    return nn.Parameter(x, requires_grad=False)
