"""Matching in plain torch on any device: statistics, the table, and the search on a sample. No value is read back on a GPU."""

import math

import torch

from lln.ops.backends import Backend
from lln.ops.moments.formula import degrees_of_freedom, match_statistics
from lln.ops.moments.op import Entropies, EntropyOperands, Matched, MatchOperands, entropies, match
from lln.ops.moments.sampling import Sampler
from lln.ops.moments.search import entropies_on_sample, highest, matched_on_sample
from lln.ops.moments.statistics import Statistics, computed_moments, statistics_of


def forward(x: MatchOperands) -> Matched:
    if x.method == "sample":
        return matched_by(Sampler(x.q, x.k, x.key_mask, x.cu_seqlens, x.scale, x.center_keys), x)
    statistics = statistics_of(
        x.q, x.k, per=x.per, key_mask=x.key_mask, cu_seqlens=x.cu_seqlens, center_keys=x.center_keys,
        ddof=degrees_of_freedom(x.target), measure=computed_moments,
    )  # fmt: skip
    alpha, beta = match_statistics(statistics, x.q.shape[-1], target=x.target, scale=x.scale, detach=False)
    return Matched(alpha, beta, torch.full_like(alpha, math.nan)[..., None].repeat(1, 1, 2))


def matched_by(sampler: Sampler, x: MatchOperands) -> Matched:
    """Matched on the sample that is drawn of x."""
    var_q, var_k = sampler.spread.overall(x.center_keys)
    keys = sampler.keys.count.to(var_k.dtype)
    statistics = Statistics(var_q, var_q, sampler.spread.mean_k, var_k, keys)
    alpha, beta = match_statistics(statistics, x.q.shape[-1], target=x.target, scale=x.scale, detach=False)
    most = highest(alpha, var_k, x.q.shape[-1], x.scale)
    found, reached = matched_on_sample(sampler, alpha, beta, most, x.scale)
    factor = (found / 2).exp()
    return Matched(alpha * factor, beta * factor, reached)


def forward_entropies(x: EntropyOperands) -> Entropies:
    sampler = Sampler(x.q, x.k, x.key_mask, x.cu_seqlens, x.scale, x.center_keys)
    return Entropies(*entropies_on_sample(sampler, x.alpha, x.beta, x.scale))


match.backends.register(Backend("chunked", forward, transparent=True))
entropies.backends.register(Backend("chunked", forward_entropies, transparent=True))
