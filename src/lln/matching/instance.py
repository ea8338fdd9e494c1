"""Matching by root finding on the inputs themselves: exact, but slower.

On a choice of rows, find s = alpha^2 sigma_q^2 + beta^2 sigma_k^2 such that LLN attention's mean row entropy (or
variance of log P) over those rows is softmax's. Rows are spread evenly over the unmasked queries (all of them
up to `ROWS`), and every unmasked key is used. Samples are processed one after another without their padding, all heads at
once.

Both measures rise with s, and their logarithm (for the entropy: the log odds of its deficit log N - H) is nearly
straight against log s, so a secant kept inside a bracket needs about six evaluations.
"""

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

ROWS = 2048
_ENTRIES = 1 << 22  # of P at a time: 32 MB of float64
_EVALUATIONS = 30
_TOLERANCE = 1e-6
_USUAL_SLOPE = 1.5  # of a measure's logarithm against log s: between 1 (narrow inputs) and 2
_WIDEST = (-25.0, 12.0)  # bracket of log(s / the table's s)
_TINY = 1e-300


def matched_on_instance(
    q: Tensor,
    k: Tensor,
    start: tuple[Tensor, Tensor],
    target: str,
    scale: float | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    center_keys: bool,
    rows: int = ROWS,
) -> tuple[Tensor, Tensor]:
    """alpha and beta (S, Hk) from those of the table, `start`, multiplied by what the root finding asks for."""
    if torch.compiler.is_compiling():
        raise RuntimeError("method='instance' searches in Python and cannot be compiled: use method='table'")
    alpha, beta = start
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    factor = torch.ones_like(alpha)
    for i, (queries, keys) in enumerate(_samples(q.detach(), k.detach(), key_mask, cu_seqlens)):
        if queries.shape[1] and keys.shape[1] > 1:  # a single key has weight 1, whatever alpha and beta
            measure = _Measure(queries, keys, alpha[i], beta[i], target, scale, center_keys, rows)
            factor[i] = (_root(measure) / 2).exp()
    return alpha * factor, beta * factor


def _samples(q: Tensor, k: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Each sample's q (Hq, Nq, D) and k (Hk, Nk, D), only the positions that count."""
    if cu_seqlens is not None:
        bounds = cu_seqlens.tolist()
        for begin, end in itertools.pairwise(bounds):
            yield q[0, :, begin:end], k[0, :, begin:end]
        return
    for i in range(q.shape[0]):
        if mask is None:
            yield q[i], k[i]
        else:
            yield q[i][:, mask[i]] if q.shape[2] == k.shape[2] else q[i], k[i][:, mask[i]]


class _Measure:
    """log of LLN's measure over softmax's, per key head, as a function of log(s / s of alpha and beta)."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        alpha: Tensor,
        beta: Tensor,
        target: str,
        scale: float,
        center_keys: bool,
        rows: int,
    ) -> None:
        heads, queries = k.shape[0], q.shape[1]
        chosen = torch.arange(min(rows, queries), device=q.device) * queries // min(rows, queries)
        self.q = q[:, chosen].double().unflatten(0, (heads, -1)).flatten(1, 2)  # (Hk, query heads x rows, D)
        self.k = k.double()
        if center_keys:
            self.k = self.k - self.k.mean(dim=1, keepdim=True)
        self.alpha, self.beta = alpha.double()[:, None, None], beta.double()[:, None, None]
        self.target = target
        self.scale = scale
        self.wanted = self._measure(None)

    def __call__(self, x: Tensor) -> Tensor:
        return self._measure((x / 2).exp()[:, None, None]) - self.wanted

    def _measure(self, factor: Tensor | None) -> Tensor:
        """The transformed measure (Hk,) of LLN with alpha and beta times factor, or of softmax if factor is None."""
        keys = self.k.shape[1]
        step = max(1, _ENTRIES // (keys * self.k.shape[0]))
        deficits, within, means = [], [], []
        for begin in range(0, self.q.shape[1], step):
            log_p = torch.log_softmax(self._scores(self.q[:, begin : begin + step], factor), dim=-1)
            deficits.append((log_p.exp() * (log_p + math.log(keys))).sum(dim=-1))
            variance, mean = torch.var_mean(log_p, dim=-1, correction=0)
            within.append(variance)
            means.append(mean)
        if self.target == "variance":
            total = torch.cat(within, dim=1).mean(dim=1) + torch.cat(means, dim=1).var(dim=1, correction=0)
            return total.clamp_min(_TINY).log()
        deficit = torch.cat(deficits, dim=1).mean(dim=1)
        return deficit.clamp_min(_TINY).log() - (math.log(keys) - deficit).clamp_min(_TINY).log()

    def _scores(self, q: Tensor, factor: Tensor | None) -> Tensor:
        """The logits of softmax, or log sum_l exp(alpha q_il + beta k_jl) up to a constant per row."""
        if factor is None:
            return self.scale * q @ self.k.transpose(1, 2)
        key = self.beta * factor * self.k
        peak = key.amax(dim=1, keepdim=True)
        query = self.alpha * factor * q + peak
        query = query - query.amax(dim=-1, keepdim=True)
        return (query.exp() @ (key - peak).exp().transpose(1, 2)).clamp_min(_TINY).log()


def _root(measure: _Measure) -> Tensor:
    """x (Hk,) with measure(x) = 0; 0, the table's answer, where there is none (queries or keys without spread)."""
    low = torch.full_like(measure.wanted, _WIDEST[0])
    high = torch.full_like(measure.wanted, _WIDEST[1])
    x = torch.zeros_like(low)
    slope = torch.full_like(low, _USUAL_SLOPE)
    value = measure(x)
    for _ in range(_EVALUATIONS):
        if bool((value.abs() < _TOLERANCE).all()):
            break
        low, high = torch.where(value < 0, x, low), torch.where(value >= 0, x, high)
        proposed = x - value / slope
        inside = (proposed > low) & (proposed < high)
        following = torch.where(inside, proposed, (low + high) / 2)
        next_value = measure(following)
        secant = (next_value - value) / (following - x)
        slope = torch.where((secant > 0.05) & secant.isfinite(), secant, _USUAL_SLOPE)
        x, value = following, next_value
    return torch.where(value.abs() < 1e-3, x, 0.0)
