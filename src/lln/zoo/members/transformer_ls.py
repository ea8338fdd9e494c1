"""Transformer-LS: a segment-wise window and a dynamic low-rank projection, in one softmax.

    p = softmax over positions of (x W_p)^T, (r x N) per head,    k' = p k, v' = p v
    out_i = softmax(q_i [LN_l(k near i); LN_g(k')]^T / sqrt d) [LN_l(v near i); LN_g(v')]

Near i: i's segment of length w and w/2 positions on either side of it. The two layer norms (DualLN) put window and
projection on one scale. Zhu et al. 2021, "Long-Short Transformer", eqs. 2-6; w = 8 and r = 32 as its Long Range Arena
models. Time O(N (w + r) d), memory O(N (w + r + d)).
Departures: none known. (Bidirectional only: the paper's causal form projects each past segment separately.)
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.registry import register
from lln.zoo.windows import from_segments, window_mask, windows


@dataclass(frozen=True)
class Options:
    window: int = 8  # w
    projections: int = 32  # r

    def __post_init__(self) -> None:
        if self.window < 2 or self.window % 2 or self.projections < 1:
            raise ValueError(
                f"window must be even and >= 2 and projections >= 1, got {self.window} and {self.projections}"
            )


@register(
    Card(
        name="transformer_ls",
        title="Transformer-LS",
        reference="Zhu et al. 2021",
        equation="softmax(qᵢ [LN k near i; LN pk]ᵀ/√d) [LN v near i; LN pv], p = softmax((x W)ᵀ)",
        time="N (w + r) d",
        memory="N (w + r + d)",
        growth="linear",
        learned=True,
    ),
    Options,
)
class TransformerLs(Mechanism):
    anchored = True
    needs_inputs = True

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        self.project = nn.Linear(shape.embed_dim, shape.num_heads * options.projections, bias=False)
        self.near_norm = nn.LayerNorm(shape.embed_dim)
        self.far_norm = nn.LayerNorm(shape.embed_dim)

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
        assert inputs is not None
        length, width = q.shape[2], self.options.window
        summary = self._projection(inputs.to(q.dtype), key_mask)  # (B, H, r, N)
        far_k, far_v = over_width(self.far_norm, summary @ k), over_width(self.far_norm, summary @ v)
        near_k = windows(over_width(self.near_norm, k), width, width // 2)  # (B, G, H, 2w, D)
        near_v = windows(over_width(self.near_norm, v), width, width // 2)

        segments = windows(q * q.shape[-1] ** -0.5, width, 0)  # (B, G, H, w, D)
        near = segments @ near_k.transpose(-1, -2)
        far = segments.transpose(1, 2).flatten(2, 3) @ far_k.transpose(-1, -2)  # (B, H, G w, r)
        far = far.unflatten(2, (-1, width)).transpose(1, 2)  # (B, G, H, w, r)
        exists = window_mask(key_mask, length, width, width // 2, q.device)[:, :, None]  # (B or 1, G, 1, 1, 2w)
        weights = torch.softmax(torch.cat([near.masked_fill(~exists, -torch.inf), far], dim=-1), dim=-1)
        near, far = weights[..., : 2 * width], weights[..., 2 * width :]
        out = from_segments(near @ near_v, length) + from_segments(far, length) @ far_v
        if key_mask is None:
            return out
        return out.masked_fill(~key_mask.any(dim=1)[:, None, None, None], 0.0)

    def _projection(self, inputs: Tensor, key_mask: Tensor | None) -> Tensor:
        scores = F.linear(inputs, self.project.weight.to(inputs.dtype))
        scores = scores.unflatten(2, (self.shape.num_heads, -1)).permute(0, 2, 3, 1)  # (B, H, r, N)
        if key_mask is None:
            return torch.softmax(scores, dim=-1)
        allowed = key_mask | ~key_mask.any(dim=1, keepdim=True)  # without any key: anything finite, zeroed at the end
        return torch.softmax(scores.masked_fill(~allowed[:, None, None, :], -torch.inf), dim=-1)


def over_width(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """The layer norm over all heads together: (B, H, N, D) -> the same."""
    weight, bias = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
    normed = F.layer_norm(x.transpose(1, 2).flatten(2), norm.normalized_shape, weight, bias, norm.eps)
    return normed.unflatten(2, (x.shape[1], -1)).transpose(1, 2)
