"""Gated delta rule: a state that forgets, and that replaces what it held for a key instead of adding to it. Causal only.

    S_t = (I - b_t k_t k_t^T) Diag(a_t) S_{t-1} + b_t k_t v_t^T,    out_t = S_t^T q_t,    |q_t| = |k_t| = 1

    b_t = sigmoid(W_b x_t),    a_t = exp(-exp(A) softplus(W_a x_t + c)): how much is written, how much is kept

with W_a, W_b, A and c learned. gate="head": one a_t per head, Gated DeltaNet (Yang et al. 2024, "Gated Delta Networks:
Improving Mamba2 with Delta Rule", arXiv 2412.06464). gate="feature": one per feature of the keys, the rule of Kimi Delta
Attention (Kimi Team 2025, arXiv 2510.26692).

Chunk by chunk. With g_t = log a summed from the chunk's start to t, and S the state before the chunk, the rule is

    u_t = b_t (v_t - S^T (e^{g_t} k_t) - sum_{s<t} (k_t . e^{g_t - g_s} k_s) u_s)          a triangular system for u
    out_t = S^T (e^{g_t} q_t) + sum_{s<=t} (q_t . e^{g_t - g_s} k_s) u_s
    S <- e^{g_C} S + sum_s (e^{g_C - g_s} k_s) u_s^T

in which every exponent is at most 0. Time O(N d (d + C)), memory O(N (d + C d)) with one gate per feature, C = 32.
Departures: the rule alone, without the papers' short convolutions and SiLU of q, k and v, output norm and output gate; the
gate per feature has a full matrix W_a where KDA's has low rank. Where a position does not count, nothing is written or
forgotten.
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

CHUNK = 32


@dataclass(frozen=True)
class Options:
    gate: Literal["head", "feature"] = "head"

    def __post_init__(self) -> None:
        if self.gate not in ("head", "feature"):
            raise ValueError(f"gate must be 'head' or 'feature', got {self.gate!r}")


@register(
    Card(
        name="gated_delta",
        title="Gated delta rule (Gated DeltaNet, KDA)",
        reference="Yang et al. 2024; Kimi Team 2025",
        equation="S ← (I − b k kᵀ) Diag(a) S + b k vᵀ, out = Sᵀ q, |q| = |k| = 1",
        time="N d²",
        memory="N d",
        growth="linear",
        causal=True,
        bidirectional=False,
        learned=True,
        departures="The rule alone: no convolutions, output norm or output gate.",
        reproduced="A key's value is replaced, not added to: unlike plain linear attention it recalls what was written last.",
    ),
    Options,
)
class GatedDelta(Mechanism):
    needs_inputs = True

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        gates = 1 if options.gate == "head" else shape.head_dim
        self.write = nn.Linear(shape.embed_dim, shape.num_heads)
        self.keep = nn.Linear(shape.embed_dim, shape.num_heads * gates)
        self.log_rate = nn.Parameter(torch.empty(shape.num_heads, 1, 1))  # A
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """From slow to fast heads."""
        self.log_rate.copy_(torch.linspace(-4.0, 0.0, len(self.log_rate))[:, None, None])

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
        if not is_causal or inputs is None:
            raise ValueError("the gated delta rule is a recurrence: it needs is_causal=True and the layer's input")
        x = inputs.to(q.dtype)
        written = torch.sigmoid(self._per_head(self.write, x))  # (B, H, N, 1)
        log_kept = -self.log_rate.to(q.dtype).exp() * F.softplus(self._per_head(self.keep, x))  # (B, H, N, 1 or D)
        if key_mask is not None:
            counts = key_mask[:, None, :, None]
            written, log_kept = (t.masked_fill(~counts, 0.0) for t in (written, log_kept))
        return delta_rule(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, written, log_kept)

    def _per_head(self, linear: nn.Linear, x: Tensor) -> Tensor:
        projected = F.linear(x, linear.weight.to(x.dtype), linear.bias.to(x.dtype))
        return projected.unflatten(2, (self.shape.num_heads, -1)).transpose(1, 2)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, written: Tensor, log_kept: Tensor) -> Tensor:
    """out (B, H, N, Dv) of the recurrence from S = 0; written (B, H, N, 1), log_kept <= 0 (B, H, N, 1 or D)."""
    length = q.shape[2]
    q, k, v, written, log_kept = (kernels.in_chunks(t, min(CHUNK, length)) for t in (q, k, v, written, log_kept))
    decay = log_kept.cumsum(dim=-2)  # g, (B, H, G, C, 1 or D)
    to_end = (decay[..., -1:, :] - decay).exp()
    lower = _decayed_products(k, k, decay).tril(-1) * written
    system = lower + torch.eye(lower.shape[-1], dtype=k.dtype, device=k.device)
    known = torch.cat([written * v, written * decay.exp() * k], dim=-1)
    solved = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    new, old = solved.split([v.shape[-1], k.shape[-1]], dim=-1)  # u = new - old S
    inside = _decayed_products(q, k, decay).tril()
    from_state, to_state = decay.exp() * q, (to_end * k).transpose(-1, -2)
    kept = decay[..., -1, :, None].exp()  # (B, H, G, 1 or D, 1)
    state, outputs = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1]), []
    for g in range(q.shape[2]):
        u = new[:, :, g] - old[:, :, g] @ state
        outputs.append(from_state[:, :, g] @ state + inside[:, :, g] @ u)
        state = kept[:, :, g] * state + to_state[:, :, g] @ u
    return torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :length]


def _decayed_products(a: Tensor, b: Tensor, decay: Tensor) -> Tensor:
    """a_t . e^{g_t - g_s} b_s for s <= t, (B, H, G, C, C); what is above the diagonal is not used, but finite."""
    between = (decay[..., :, None, :] - decay[..., None, :, :]).clamp(max=0.0).exp()  # (B, H, G, C, C, 1 or D)
    if between.shape[-1] == 1:
        return a @ b.transpose(-1, -2) * between[..., 0]
    return (a[..., :, None, :] * between * b[..., None, :, :]).sum(dim=-1)
