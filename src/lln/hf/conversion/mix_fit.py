"""Closed-form fits of a linear attention to the softmax attention it replaces, per head, on forward passes alone.

With t the softmax output, o LLN's, b the blocks', s_i the share of a row's weight (`lln.hf.attention.far_weight`; 1
without it) and d = s (o - b), over all rows that count:

    concentration  the factor f on the matched alpha and beta with the least squared error, after mixing
    mixing         m = <t - b, d> / <d, d>, within [0, 1]

Where no row sees beyond its block, nothing can be told: alpha, beta and mixing stay as they were matched and given. Only
the front for Hugging Face fits LLN+Diag; `lln.convert` fits near-far attention alone, by code that both fronts share.
"""

import torch
from torch import Tensor

FACTORS = (0.4, 0.55, 0.7, 0.85, 1.0, 1.2, 1.5)


class MixFit:
    """Squared errors of every factor and the mixing that goes with it; sums over batches, per head."""

    def __init__(self, factors: tuple[float, ...], mix: float = 0.5) -> None:
        self.factors, self.mix = factors, mix
        self.sums: dict[int, Tensor] = {}  # factor -> (3, Hq): <d, d>, <t-b, d>, <t-b, t-b>
        self.power: Tensor | None = None  # <t, t>, (Hq,)

    def add(
        self,
        which: int,
        target: Tensor,
        lln: Tensor,
        blocks: Tensor | None,
        rows: Tensor | None,
        share: Tensor | None = None,
    ) -> None:
        """Outputs (B, Hq, N, D) of factor number `which`; rows (B, N), True where the row counts; share (B or 1, 1, N)."""
        local = torch.zeros_like(target) if blocks is None else blocks
        moved, missing = _counting(lln - local, rows), _counting(target - local, rows)
        moved = moved if share is None else moved * share[..., None]
        sums = torch.stack([_dot(moved, moved), _dot(missing, moved), _dot(missing, missing)])
        self.sums[which] = self.sums[which] + sums if which in self.sums else sums
        if which == 0:
            power = _dot(_counting(target, rows), _counting(target, rows))
            self.power = power if self.power is None else self.power + power

    @property
    def saw_nothing(self) -> bool:
        """Whether LLN had no say in any row of the data."""
        return not any(bool((sums[0] > 0).any()) for sums in self.sums.values())

    def best(self, key_heads: int, mixing: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Factor per key head (Hk,), mixing per head (Hq,) and the error left over relative to the output's power (Hq,).

        Query heads of one key head share beta, so they share the factor.
        """
        assert self.power is not None
        a, b, c = torch.stack([self.sums[i] for i in range(len(self.factors))]).unbind(1)  # (F, Hq) each
        told = a > 0  # not where every text fits its block
        mix = torch.where(told, b / a.clamp_min(1e-30), self.mix).clamp(0, 1) if mixing else torch.ones_like(a)
        errors = c - 2 * mix * b + mix.square() * a  # (F, Hq)
        chosen = errors.unflatten(1, (key_heads, -1)).sum(-1).argmin(0)  # (Hk,)
        if 1.0 in self.factors:
            told_heads = told.unflatten(1, (key_heads, -1)).any(-1).any(0)
            chosen = torch.where(told_heads, chosen, self.factors.index(1.0))
        per_head = chosen.repeat_interleave(errors.shape[1] // key_heads)[None]
        left = errors.gather(0, per_head)[0] / self.power.clamp_min(1e-30)
        factors = torch.tensor(self.factors, dtype=a.dtype, device=a.device)
        return factors[chosen], mix.gather(0, per_head)[0], left


def _counting(x: Tensor, rows: Tensor | None) -> Tensor:
    return x if rows is None else torch.where(rows[:, None, :, None], x, 0.0)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return torch.einsum("bhnd,bhnd->h", x.double(), y.double())
