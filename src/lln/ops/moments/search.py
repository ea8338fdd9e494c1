"""Matching on a sample: one factor on the table's alpha and beta, so that LLN attention has softmax's entropy on it.

    H_softmax = mean_i H(softmax(scale q_i.k_j)),    H_LLN(x) = mean_i H(sum_l exp(e^(x/2) (alpha q_il + beta k_jl)))

find x with H_LLN(x) = H_softmax, both over the same sample of queries and keys (`lln.ops.moments.sampling`); then
alpha e^(x/2) and beta e^(x/2) are the result. x = 0 is the table's answer, which is right for Gaussian inputs.

The log odds of the deficit, log((log N - H) / H), are nearly straight against x, so a secant kept inside a bracket
comes close in two to four evaluations, and its last step need not be evaluated. That is first done on a small sample, of
which every row is looked at by both attentions. Their difference has a standard error over the rows. Where this is more
than a share of what would be tolerated (3 % of softmax's entropy, or 0.15 bits), or the table is off by a factor of two, the
search goes on with more rows and keys, for each attention those it needs:

    softmax  is looked at once, and its rows differ widely: hundreds of rows by rank of r, on a few keys; a few of these
             rows over many more keys, and what that adds is added for all: each row may have keys of its own to look at
    LLN      is looked at several times, and its rows differ less: some of those rows, by rank of the largest exponent,
             max_l (alpha q_il + beta max_j k_jl)

The number of evaluations is fixed and what has come close stays as it is, so that nothing is read back from a device.

x has a highest value, at which

    alpha = scale d sigma_k,    beta = scale d sigma_q

or 0, where the table asks for more than that already. One feature then moves the exponent as fast as all d features of
softmax's logit together would, were they equal. Gaussian inputs come to that in the limit of narrow ones, and stay below it
otherwise. Where softmax looks at one key alone, single features could follow it only with an alpha without bound, and
gradients grow with alpha.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.moments.sampling import (
    LLN_KEYS,
    LLN_ROWS,
    LONG_KEYS,
    LONG_ROWS,
    SMALL_KEYS,
    SMALL_ROWS,
    SOFTMAX_KEYS,
    Sample,
    Sampler,
)

LOWEST = -16.0  # x
STEEPEST = 1.0  # the highest alpha, in scale d sigma_k
USUAL_SLOPE = 1.5  # of the log odds against x: between 1 (narrow inputs) and 2
SMALLEST_SLOPE = 0.05
SMALL_EVALUATIONS, LARGE_EVALUATIONS = 6, 4
SMALLEST_DEFICIT, SMALLEST_ENTROPY = 1e-4, 1e-2  # nats; beyond, the odds say nothing
TOLERATED, TOLERATED_SHARE = 0.15 * math.log(2), 0.03  # nats, of softmax's entropy
CLOSE = 0.25  # of what is tolerated: who has come so close needs no further evaluation
TRUSTED = 0.6  # of what is tolerated: the largest standard error of the small sample
USUAL_X = 1.5  # inputs on which the table is off by a factor of 2 have rare rows that a small sample may miss
_TINY, _SMALLEST_VARIANCE = 1e-300, 1e-30


class Search(NamedTuple):
    """Where the search for x stands."""

    x: Tensor  # (S, H)
    slope: Tensor  # (S, H)
    lln: Tensor  # (S, H, R): entropies at the last x that was evaluated, nats


def may_look(x: Tensor) -> bool:
    """Whether a value may be read to stop early: on a GPU the host would wait for it."""
    return x.device.type == "cpu"


def highest(alpha: Tensor, var_k: Tensor, head_dim: int, scale: float) -> Tensor:
    """The highest x (S, H), from the table's alpha and the variance of k (S, H)."""
    steepest = STEEPEST * abs(scale) * head_dim * var_k.clamp_min(_SMALLEST_VARIANCE).sqrt()
    return 2 * (steepest / alpha.clamp_min(_TINY)).log().clamp_min(0)


def matched_on_sample(
    sampler: Sampler, alpha: Tensor, beta: Tensor, most: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """x (S, H), from the table's alpha and beta and the highest x (S, H), and what it came to: the entropies (S, H, 2) of
    softmax and LLN, nats."""
    start = torch.zeros_like(alpha)
    sample = sampler.draw(sampler.rows_by_position(SMALL_ROWS, SMALL_ROWS), SMALL_KEYS)
    of_softmax = _softmax_entropies(sample, scale)
    softmax = _mean(of_softmax, sample)
    usual = torch.full_like(start, USUAL_SLOPE)
    small = _search(sample, alpha, beta, most, softmax, start, usual, SMALL_EVALUATIONS)
    error = _standard_error(small.lln - of_softmax, sample)
    enough = (error <= TRUSTED * _tolerated(softmax)) & (small.x.abs() <= USUAL_X)
    lln = _mean(small.lln, sample)
    if may_look(start) and bool(enough.all()):
        return small.x, torch.stack([softmax, lln], dim=-1)
    sample, of_many = _large_sample(sampler, alpha, beta, scale)
    large = _search(sample, alpha, beta, most, of_many, small.x, small.slope, LARGE_EVALUATIONS)
    reached = torch.stack([of_many, _mean(large.lln, sample)], dim=-1)
    found = torch.where(enough[..., None], torch.stack([softmax, lln], dim=-1), reached)
    return torch.where(enough, small.x, large.x), found


def entropies_on_sample(sampler: Sampler, alpha: Tensor, beta: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Mean row entropies (S, H) of softmax and of LLN with these alpha and beta (S, H) on the large samples, nats."""
    sample, softmax = _large_sample(sampler, alpha, beta, scale)
    return softmax, _mean(_lln_entropies(sample, alpha, beta), sample)


def _large_sample(sampler: Sampler, alpha: Tensor, beta: Tensor, scale: float) -> tuple[Sample, Tensor]:
    """The sample that LLN attention is looked at on, and softmax's mean entropy (S, H)."""
    rows = sampler.rows_by_rank()
    sample = sampler.draw(rows, SOFTMAX_KEYS)
    entropies = _softmax_entropies(sample, scale)
    in_order = torch.zeros_like(entropies)  # as they come, which is by rank
    some, chosen = sampler.some(rows, in_order, LONG_ROWS)
    long = sampler.draw(some, LONG_KEYS)
    missed = _mean(_softmax_entropies(long, scale) - entropies.gather(-1, chosen), long)
    softmax = (_mean(entropies, sample) + missed).clamp_min(0)
    some, _ = sampler.some(rows, _largest_exponents(sample, alpha, beta), LLN_ROWS)
    return sampler.draw(some, LLN_KEYS), softmax


def _largest_exponents(sample: Sample, alpha: Tensor, beta: Tensor) -> Tensor:
    """max_l (alpha q_il + beta max_j k_jl), (S, H, R): what LLN attention of a row follows. Rounded, like r."""
    alpha, beta = alpha[..., None, None], beta[..., None, None]
    return (alpha * sample.q + beta * sample.k.amax(dim=2, keepdim=True)).amax(dim=-1).float()


def _search(
    sample: Sample,
    alpha: Tensor,
    beta: Tensor,
    most: Tensor,
    softmax: Tensor,
    x: Tensor,
    slope: Tensor,
    evaluations: int,
) -> Search:
    full = sample.keys.clamp_min(1).to(x.dtype).log()[:, None]
    wanted = _odds(softmax, full)

    def look(at: Tensor) -> tuple[Tensor, Tensor]:
        factor = (at / 2).exp()
        of_lln = _lln_entropies(sample, alpha * factor, beta * factor)
        return _odds(_mean(of_lln, sample), full) - wanted, of_lln

    low, high = torch.full_like(x, LOWEST), most
    value, lln = look(x)
    for _ in range(evaluations - 1):
        close = ((_mean(lln, sample) - softmax).abs() < CLOSE * _tolerated(softmax)) | ~value.isfinite()
        close |= (x >= most) & (value < 0)
        if may_look(x) and bool(close.all()):
            break
        low, high = torch.where(value < 0, x, low), torch.where(value >= 0, x, high)
        following = torch.where(close, x, _step(x, value, slope, low, high, most))
        next_value, next_lln = look(following)
        slope = torch.where(close, slope, _secant(next_value - value, following - x, slope))
        value, lln = torch.where(close, value, next_value), torch.where(close[..., None], lln, next_lln)
        x = following
    # close to the root the secant is better than where it starts; where both are uniform there is nothing to find
    low, high = torch.where(value < 0, x, low), torch.where(value >= 0, x, high)
    further = _step(x, value, slope, low, high, most)
    x = torch.where((value.abs() < 1.0) & (full - softmax > SMALLEST_DEFICIT), further, x)
    return Search(x, slope, lln)


def _step(x: Tensor, value: Tensor, slope: Tensor, low: Tensor, high: Tensor, most: Tensor) -> Tensor:
    proposed = (x - value / slope).minimum(most)
    return torch.where((proposed > low) & (proposed <= high), proposed, (low + high) / 2)


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
