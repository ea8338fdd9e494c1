"""Matching by the table: sums, and the interpolation of `lln.ops.moments.table`."""

import math

import torch

from lln.onnx.forms.scanning import refuse_packed
from lln.ops.moments.formula import degrees_of_freedom, match_statistics
from lln.ops.moments.op import Matched, MatchOperands, Moments, Operands
from lln.ops.moments.statistics import differentiable_moments, statistics_of


def moments(x: Operands) -> Moments:
    refuse_packed(x.cu_seqlens)
    return differentiable_moments(x.x, x.key_mask)


def match(x: MatchOperands) -> Matched:
    refuse_packed(x.cu_seqlens)
    if x.method != "table":
        raise NotImplementedError(
            f"matching by method {x.method!r} searches on a sample of the inputs, which a graph outside of torch cannot hold. "
            "Give alpha and beta, or match by the table: match_moments(q, k, method='table') with the function, "
            "matching_options={'method': 'table'} with a layer"
        )
    statistics = statistics_of(
        x.q, x.k, per=x.per, key_mask=x.key_mask, center_keys=x.center_keys, ddof=degrees_of_freedom(x.target),
        measure=differentiable_moments,
    )  # fmt: skip
    alpha, beta = match_statistics(statistics, x.q.shape[-1], target=x.target, scale=x.scale, detach=False)
    return Matched(alpha, beta, torch.full_like(alpha, math.nan)[..., None].repeat(1, 1, 2))
