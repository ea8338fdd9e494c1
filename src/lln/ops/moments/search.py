"""Matching on a sample: one factor on the table's alpha and beta, so that LLN attention has softmax's entropy on it.

    H_softmax = mean_i H(softmax(scale q_i.k_j)),    H_LLN(x) = mean_i H(sum_l exp(e^(x/2) (alpha q_il + beta k_jl)))

find x with H_LLN(x) = H_softmax, both over the same sample of queries and keys (`lln.ops.moments.sampling`); then
alpha e^(x/2) and beta e^(x/2) are the result. x = 0 is the table's answer, which is right for Gaussian inputs.

The log odds of the deficit, log((log N - H) / H), are nearly straight against x, so a secant kept inside a bracket
comes close in two to six evaluations, and its last step need not be evaluated. Rows differ: the difference of the two
entropies has a standard error over them. Where this is more than a share of what would be tolerated (3 % of softmax's
entropy, or 0.15 bits), which is so for sharp attention, the search goes on with the large sample.

The number of evaluations is fixed and what has come close stays as it is, so that nothing is read back from a device.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.moments.sampling import LARGE, LONG, SMALL, Sample, Sampler

WIDEST = (-16.0, 12.0)  # bracket of x
USUAL_SLOPE = 1.5  # of the log odds against x: between 1 (narrow inputs) and 2
SMALLEST_SLOPE = 0.05
SMALL_EVALUATIONS, LARGE_EVALUATIONS = 10, 8
SMALLEST_DEFICIT, SMALLEST_ENTROPY = 1e-4, 1e-2  # nats; beyond, the odds say nothing
TOLERATED, TOLERATED_SHARE = 0.15 * math.log(2), 0.03  # nats, of softmax's entropy
CLOSE = 0.25  # of what is tolerated: who has come so close needs no further evaluation
TRUSTED = 0.6  # of what is tolerated: the largest standard error of the small sample
USUAL_X = 1.5  # inputs on which the table is off by a factor of 2 have rare rows that a small sample may miss
_TINY = 1e-300


class Search(NamedTuple):
    """Where the search for x stands, (S, H) each."""

    x: Tensor
    slope: Tensor
    error: Tensor  # standard error of the difference of the entropies over the rows, nats
    softmax: Tensor  # entropies, nats
    lln: Tensor  # at the last x that was evaluated


def may_look(x: Tensor) -> bool:
    """Whether a value may be read to stop early: on a GPU the host would wait for it."""
    return x.device.type == "cpu"


def matched_on_sample(sampler: Sampler, alpha: Tensor, beta: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """x (S, H), from the table's alpha and beta (S, H), and the entropies (S, H, 2) of softmax and LLN it came to, nats."""
    start = torch.zeros_like(alpha)
    sample = sampler.draw(sampler.rows(SMALL), SMALL)
    of_softmax = _softmax_entropies(sample, scale)
    small = _search(
        sample, alpha, beta, of_softmax, 0.0 * start, start, torch.full_like(start, USUAL_SLOPE), SMALL_EVALUATIONS
    )
    enough = (small.error <= TRUSTED * _tolerated(small.softmax)) & (small.x.abs() <= USUAL_X)
    if may_look(start) and bool(enough.all()):
        found = small
    else:
        sample, of_softmax, missed = _large_sample(sampler, scale)
        large = _search(sample, alpha, beta, of_softmax, missed, small.x, small.slope, LARGE_EVALUATIONS)
        found = Search(*(torch.where(enough, one, other) for one, other in zip(small, large, strict=True)))
    return found.x, torch.stack([found.softmax, found.lln], dim=-1)


def entropies_on_sample(sampler: Sampler, alpha: Tensor, beta: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Mean row entropies (S, H) of softmax and of LLN with these alpha and beta (S, H) on the large sample, nats."""
    sample, of_softmax, missed = _large_sample(sampler, scale)
    softmax = (_mean(of_softmax, sample) + missed).clamp_min(0)
    return softmax, _mean(_lln_entropies(sample, alpha, beta), sample)


def _large_sample(sampler: Sampler, scale: float) -> tuple[Sample, Tensor, Tensor]:
    """The large sample, softmax's entropies on it (S, H, R), and what it misses of their mean (S, H).

    Each row of softmax attention may have keys of its own to look at, which no choice of keys for all rows contains. So
    a fourth of the rows is looked at over many more keys, and what that adds is added for all.
    """
    rows = sampler.rows(LARGE)
    sample = sampler.draw(rows, LARGE)
    of_softmax = _softmax_entropies(sample, scale)
    nth = LARGE.rows // LONG.rows
    long = sampler.draw(rows.every(nth), LONG)
    missed = _mean(_softmax_entropies(long, scale) - of_softmax[..., nth // 2 :: nth], long)
    return sample, of_softmax, missed


def _search(
    sample: Sample,
    alpha: Tensor,
    beta: Tensor,
    of_softmax: Tensor,
    missed: Tensor,
    x: Tensor,
    slope: Tensor,
    evaluations: int,
) -> Search:
    full = sample.keys.clamp_min(1).to(x.dtype).log()[:, None]
    softmax = (_mean(of_softmax, sample) + missed).clamp_min(0)
    wanted = _odds(softmax, full)

    def look(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        factor = (at / 2).exp()
        of_lln = _lln_entropies(sample, alpha * factor, beta * factor)
        lln = _mean(of_lln, sample)
        return _odds(lln, full) - wanted, lln, of_lln - of_softmax

    low, high = torch.full_like(x, WIDEST[0]), torch.full_like(x, WIDEST[1])
    value, lln, difference = look(x)
    for _ in range(evaluations - 1):
        close = ((lln - softmax).abs() < CLOSE * _tolerated(softmax)) | ~value.isfinite()
        if may_look(x) and bool(close.all()):
            break
        low, high = torch.where(value < 0, x, low), torch.where(value >= 0, x, high)
        following = torch.where(close, x, _step(x, value, slope, low, high))
        next_value, next_lln, next_difference = look(following)
        slope = torch.where(close, slope, _secant(next_value - value, following - x, slope))
        value, lln = torch.where(close, value, next_value), torch.where(close, lln, next_lln)
        difference = torch.where(close[..., None], difference, next_difference)
        x = following
    # close to the root the secant is better than where it starts; where both are uniform there is nothing to find
    low, high = torch.where(value < 0, x, low), torch.where(value >= 0, x, high)
    further = _step(x, value, slope, low, high)
    x = torch.where((value.abs() < 1.0) & (full - softmax > SMALLEST_DEFICIT), further, x)
    return Search(x, slope, _standard_error(difference, sample), softmax, lln)


def _step(x: Tensor, value: Tensor, slope: Tensor, low: Tensor, high: Tensor) -> Tensor:
    proposed = x - value / slope
    return torch.where((proposed > low) & (proposed < high), proposed, (low + high) / 2)


def _secant(rise: Tensor, run: Tensor, otherwise: Tensor) -> Tensor:
    slope = rise / run
    return torch.where((slope > SMALLEST_SLOPE) & slope.isfinite(), slope, otherwise)


def _tolerated(softmax: Tensor) -> Tensor:
    return (TOLERATED_SHARE * softmax).clamp_min(TOLERATED)


def _odds(entropy: Tensor, full: Tensor) -> Tensor:
    return (full - entropy).clamp_min(SMALLEST_DEFICIT).log() - entropy.clamp_min(SMALLEST_ENTROPY).log()


def _softmax_entropies(sample: Sample, scale: float) -> Tensor:
    """(S, H, R)."""
    own = (sample.q * sample.own).sum(dim=-1, keepdim=True)
    logits = scale * torch.cat([sample.q @ sample.k.mT, own], dim=-1)
    seen = sample.weight > 0
    logits = logits - torch.where(seen, logits, -torch.inf).amax(dim=-1, keepdim=True).nan_to_num(0.0, 0.0, 0.0)
    mass = torch.where(seen, sample.weight * logits.exp(), 0.0)
    return _entropy(mass, torch.where(seen, logits, 0.0))


def _lln_entropies(sample: Sample, alpha: Tensor, beta: Tensor) -> Tensor:
    """(S, H, R)."""
    alpha, beta = alpha[..., None, None], beta[..., None, None]
    keys, own = beta * sample.k, beta * sample.own
    peak = torch.maximum(keys.amax(dim=2, keepdim=True), own.amax(dim=2, keepdim=True))
    query = alpha * sample.q + peak
    query = (query - query.amax(dim=-1, keepdim=True)).exp()
    of_own = (query * (own - peak).exp()).sum(dim=-1, keepdim=True)
    kernel = torch.cat([query @ (keys - peak).exp().mT, of_own], dim=-1)
    return _entropy(sample.weight * kernel, kernel.clamp_min(_TINY).log())


def _entropy(mass: Tensor, log: Tensor) -> Tensor:
    """Of rows that put `mass` on the keys that a place stands for, each of which has exp(log) of it."""
    total = mass.sum(dim=-1).clamp_min(_TINY)
    return (total.log() - (mass * log).sum(dim=-1) / total).clamp_min(0)


def _mean(x: Tensor, sample: Sample) -> Tensor:
    """(S, H, R) -> (S, H), over the rows that count."""
    counts = sample.row_counts[:, None]
    return torch.where(counts, x, 0.0).sum(dim=-1) / counts.sum(dim=-1).clamp_min(1)


def _standard_error(difference: Tensor, sample: Sample) -> Tensor:
    counts = sample.row_counts.sum(dim=-1)[:, None]
    variance = _mean((difference - _mean(difference, sample)[..., None]).square(), sample)
    return (variance / counts.clamp_min(1)).sqrt()
