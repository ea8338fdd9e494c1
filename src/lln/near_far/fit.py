"""The four weights of near-far attention in closed form: least squares to softmax's output, head by head.

The output is linear in the weights w = (near, LLN, mean, slope):

    out_i = (1 - m_i) near_i + sum_c w_c part_ic          part_i = m_i (near_i, LLN_i, v_mean_i, slope_i)

so the weights with the least squared distance to a target t, over rows of any number of texts, solve

    (G + r I) (w - w_0) = b - G w_0,      G = sum part part^T,   b = sum part (t - (1 - m) near),   r = ridge * mean(diag G)

w_0, what the ridge pulls towards, are the neutral weights: a head to which nothing is far keeps them. Sums are in float64.

Which of the four a head uses, and how strong its ridge is, can be chosen by what predicts texts that were left out
(`NearFarFit.best`): sums are kept for each text, so all choices and all texts left out cost a few small systems of equations.
"""

from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lln.near_far.attention import NEUTRAL, operands
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


RIDGES = (1e-6, 1e-3, 1e-2, 1e-1)
CHOICES = tuple(chosen for size in range(1, len(WEIGHTS) + 1) for chosen in combinations(WEIGHTS, size))


class Sums(NamedTuple):
    """Of each text, in float64; T texts."""

    gram: Tensor  # G, (T, Hq, 4, 4)
    right: Tensor  # b, (T, Hq, 4)
    missing: Tensor  # |t - (1 - m) near|^2, (T, Hq)
    power: Tensor  # |t|^2, (T, Hq)

    def squared_error(self, weights: Tensor) -> Tensor:
        """|t - out|^2, (T, Hq), with weights (T or 1, Hq, 4)."""
        bent = torch.einsum("thi,thij,thj->th", weights.expand_as(self.right), self.gram, weights.expand_as(self.right))
        return (self.missing - 2 * (weights * self.right).sum(-1) + bent).clamp(min=0)


class NearFarFit:
    """Normal equations, text by text; `weights()` solves them for all four weights, `best()` for those that are worth it."""

    def __init__(self) -> None:
        self._batches: list[Sums] = []

    def add(self, target: Tensor, fixed: Tensor, parts: Tensor, rows: Tensor | None = None) -> None:
        """Softmax's output (B, Hq, N, Dv), what `near_far_parts` returned, and which rows (B, N) count; None: all."""
        target, fixed, parts = (t.double() for t in (target, fixed, parts))
        if rows is not None:
            counts = rows[:, None, :, None]
            target, fixed = (torch.where(counts, t, 0.0) for t in (target, fixed))
            parts = torch.where(counts[..., None], parts, 0.0)
        rest = target - fixed
        sums = Sums(
            torch.einsum("bhndi,bhndj->bhij", parts, parts), torch.einsum("bhndi,bhnd->bhi", parts, rest),
            rest.square().sum(dim=(2, 3)), target.square().sum(dim=(2, 3)),
        )  # fmt: skip
        self._batches.append(sums)

    @property
    def sums(self) -> Sums:
        if not self._batches:
            raise ValueError("nothing was added to this fit: call add with softmax's output first")
        return Sums(*(torch.cat(same) for same in zip(*self._batches, strict=True)))

    def weights(self, ridge: float = RIDGE, parts: tuple[str, ...] = WEIGHTS) -> Tensor:
        """(Hq, 4) in float64. `parts`: which of the weights are fitted; the others are 0."""
        sums = self.sums
        if not parts or any(name not in WEIGHTS for name in parts):
            raise ValueError(f"parts are some of {', '.join(WEIGHTS)}, got {parts}")
        if ridge < 0:
            raise ValueError(f"ridge must be at least 0, got {ridge}")
        return _solved(sums.gram.sum(0), sums.right.sum(0), ridge, parts)

    def best(self) -> Tensor:
        """(Hq, 4): of all choices of parts and ridges, for each head the one that predicts best a text that it did not see.

        Each text is left out in turn. Where no choice is better, as from one text alone or where nothing is far, it is all
        four weights and the least ridge.
        """
        sums = self.sums
        if len(sums.power) < 2:
            return self.weights()
        gram, right = (t.sum(0) - t for t in (sums.gram, sums.right))  # of all texts but one
        found = self.weights()
        least = sums.squared_error(_solved(gram, right, RIDGE, WEIGHTS)).sum(0)
        for parts in CHOICES:
            for ridge in RIDGES:
                error = sums.squared_error(_solved(gram, right, ridge, parts)).sum(0)  # (Hq,), of the texts left out
                better = error < least * (1 - 1e-6)
                found = torch.where(better[:, None], self.weights(ridge, parts), found)
                least = torch.where(better, error, least)
        return found

    def error(self, weights: Tensor) -> Tensor:
        """|t - out|^2 / |t|^2 of each head, (Hq,), over what was added."""
        sums = self.sums
        squared = sums.squared_error(weights.to(sums.gram)[None]).sum(0)
        return squared / sums.power.sum(0).clamp(min=torch.finfo(squared.dtype).tiny)


def _solved(gram: Tensor, right: Tensor, ridge: float, parts: tuple[str, ...]) -> Tensor:
    """The weights (..., 4) of G (..., 4, 4) and b (..., 4); those of other parts are 0."""
    chosen = [WEIGHTS.index(name) for name in parts]
    small, wanted = gram[..., chosen, :][..., chosen], right[..., chosen]
    neutral = torch.tensor(NEUTRAL, dtype=gram.dtype, device=gram.device)[chosen]
    size = small.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    pull = (ridge * size + torch.finfo(gram.dtype).tiny)[..., None, None] * torch.eye(len(chosen)).to(gram)
    moved = torch.linalg.solve(small + pull, wanted - small @ neutral)
    found = torch.zeros_like(right)
    found[..., chosen] = neutral + moved
    return found


__all__ = ["NearFarFit", "near_far_parts"]
