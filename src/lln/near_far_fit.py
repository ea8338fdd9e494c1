"""The four weights of near-far attention in closed form: least squares to softmax's output, head by head.

The output is linear in the weights w = (near, LLN, mean, slope):

    out_i = (1 - m_i) near_i + sum_c w_c part_ic          part_i = m_i (near_i, LLN_i, v_mean_i, slope_i)

so the weights with the least squared distance to a target t, over rows of any number of texts, solve

    (G + r I) (w - w_0) = b - G w_0,      G = sum part part^T,   b = sum part (t - (1 - m) near),   r = ridge * mean(diag G)

w_0, what the ridge pulls towards, are the neutral weights: a head to which nothing is far keeps them. Sums are in float64.
"""

from typing import Any

import torch
from torch import Tensor

from lln.near_far import NEUTRAL, operands
from lln.ops.backends import AUTO
from lln.ops.near_far import WEIGHTS, near_far

RIDGE = 1e-6


def near_far_parts(
    q: Tensor, k: Tensor, v: Tensor, alpha: Any = None, beta: Any = None, *, backend: str = AUTO, **options: Any
) -> tuple[Tensor, Tensor]:
    """(1 - m) near, (B, Hq, N, Dv), and the parts that the weights multiply, (B, Hq, N, Dv, 4), in the compute dtype.

    The arguments are those of `near_far_attention`. One call computes all: each query head comes five times, with no weights
    and with each of them alone.
    """
    x = operands(q, k, v, alpha, beta, **options)
    copies = len(WEIGHTS) + 1
    one_each = torch.eye(len(WEIGHTS), dtype=x.weights.dtype, device=q.device)
    weights = torch.cat([torch.zeros_like(one_each[:1]), one_each]).repeat(x.q.shape[1], 1)  # (5 Hq, 4)
    repeated: dict[str, Any] = {
        name: t.repeat_interleave(copies, dim=1)
        for name, t in (("q", x.q), ("alpha", x.alpha), ("bias", x.bias))
        if t is not None
    }
    weights = weights.expand(x.q.shape[0], -1, -1)
    out = near_far(x._replace(**repeated, weights=weights), backend).out.to(x.weights.dtype)
    fixed, *alone = out.unflatten(1, (-1, copies)).unbind(dim=2)
    return fixed, torch.stack([t - fixed for t in alone], dim=-1)


class NearFarFit:
    """Normal equations, added up over batches; `weights()` solves them."""

    def __init__(self) -> None:
        self.gram: Tensor | None = None  # G, (Hq, 4, 4)
        self.right: Tensor | None = None  # b, (Hq, 4)
        self.missing: Tensor | None = None  # |t - (1 - m) near|^2, (Hq,)
        self.power: Tensor | None = None  # |t|^2, (Hq,)

    def add(self, target: Tensor, fixed: Tensor, parts: Tensor, rows: Tensor | None = None) -> None:
        """Softmax's output (B, Hq, N, Dv), what `near_far_parts` returned, and which rows (B, N) count; None: all."""
        target, fixed, parts = (t.double() for t in (target, fixed, parts))
        if rows is not None:
            counts = rows[:, None, :, None]
            target, fixed = (torch.where(counts, t, 0.0) for t in (target, fixed))
            parts = torch.where(counts[..., None], parts, 0.0)
        rest = target - fixed
        self.gram = _plus(self.gram, torch.einsum("bhndi,bhndj->hij", parts, parts))
        self.right = _plus(self.right, torch.einsum("bhndi,bhnd->hi", parts, rest))
        self.missing = _plus(self.missing, rest.square().sum(dim=(0, 2, 3)))
        self.power = _plus(self.power, target.square().sum(dim=(0, 2, 3)))

    def weights(self, ridge: float = RIDGE, parts: tuple[str, ...] = WEIGHTS) -> Tensor:
        """(Hq, 4) in float64. `parts`: which of the weights are fitted; the others are 0."""
        if self.gram is None or self.right is None:
            raise ValueError("nothing was added to this fit: call add with softmax's output first")
        if not parts or any(name not in WEIGHTS for name in parts):
            raise ValueError(f"parts are some of {', '.join(WEIGHTS)}, got {parts}")
        if ridge < 0:
            raise ValueError(f"ridge must be at least 0, got {ridge}")
        chosen = [WEIGHTS.index(name) for name in parts]
        gram, right = self.gram[:, chosen][:, :, chosen], self.right[:, chosen]
        neutral = torch.tensor(NEUTRAL, dtype=gram.dtype, device=gram.device)[chosen]
        size = gram.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
        pull = (ridge * size + torch.finfo(gram.dtype).tiny)[:, None, None] * torch.eye(len(chosen)).to(gram)
        moved = torch.linalg.solve(gram + pull, right - gram @ neutral)
        found = torch.zeros_like(self.right)
        found[:, chosen] = neutral + moved
        return found

    def error(self, weights: Tensor) -> Tensor:
        """|t - out|^2 / |t|^2 of each head, (Hq,), over what was added."""
        if self.gram is None or self.right is None or self.missing is None or self.power is None:
            raise ValueError("nothing was added to this fit: call add with softmax's output first")
        w = weights.to(self.gram)
        squared = self.missing - 2 * (w * self.right).sum(-1) + torch.einsum("hi,hij,hj->h", w, self.gram, w)
        return squared.clamp(min=0) / self.power.clamp(min=torch.finfo(w.dtype).tiny)


def _plus(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part


__all__ = ["NearFarFit", "near_far_parts"]
