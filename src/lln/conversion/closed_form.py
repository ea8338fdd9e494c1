"""The numbers of a linear attention in closed form, from passes with softmax running.

    alpha, beta   from the statistics of q and k (eq. 10 through the table), and w = -beta mu with mu the mean key
    weights       of near-far attention, four a head, by least squares to softmax's output (`lln.near_far.fit`)

Each sample of the calibration data is a fold of its own where the weights are chosen by cross-validation; packed sequences of a
batch are one together.
"""

import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from lln.conversion.asked import Call, Place, Show, rows_that_count
from lln.conversion.parameters import LLNParameters
from lln.conversion.pooled_statistics import PooledStatistics
from lln.conversion.sets import set_parts
from lln.matching import DEFAULT_TARGET, match_statistics, shape_for_attention
from lln.near_far.fit import NearFarFit, near_far_parts


def set_matched(
    own: LLNParameters,
    pooled: PooledStatistics,
    place: str,
    *,
    target: str = DEFAULT_TARGET,
    subtract_mean_key: bool = True,
) -> None:
    """alpha, beta and w of the attention at `place`, on the device of what it was measured on."""
    found = pooled.result(subtract_mean_key)
    if not all(bool(x.isfinite().all()) for x in (found.var_q, found.var_k, found.mean_key)):
        raise ValueError(
            f"{place}: queries or keys are not finite on the data to calibrate on, so alpha and beta cannot be matched to them"
        )
    matched = match_statistics(found, own.shape.head_dim, target=target, scale=pooled.scale)
    alpha, beta = shape_for_attention(*matched, own.shape.heads, torch.float32)
    own.to(alpha.device).set(alpha=alpha[0, :, 0], beta=beta[0, :, 0])
    own.mean_key = found.mean_key[0].float() if subtract_mean_key else None
    set_bias(own)


def set_bias(own: LLNParameters) -> None:
    """w = -beta mu, for each query head."""
    if own.mean_key is not None:
        bias = -own.beta * own.mean_key
        own.set(feature_bias=bias.repeat_interleave(own.shape.heads // own.shape.key_heads, dim=0))


def normal_equations(
    show: Show[Place, Call], own: Mapping[Place, LLNParameters], near: Mapping[str, Any], sets: Collection[Place] = ()
) -> dict[Place, NearFarFit]:
    """Of the weights of each attention, with its alpha, beta and w as they are.

    near: block_size, neighbours and first_tokens. sets: cross-attentions that know their keys by moments; other calls across
    sequences, where no key is near, are passed over.
    """
    fits: dict[Place, NearFarFit] = {}

    def watch(place: Place, call: Call, wanted: Tensor) -> None:
        parameters = own.get(place)
        if parameters is None or (call.cross and place not in sets):
            return
        if place in sets:
            parts, rows = set_parts(call, parameters), None
        else:
            alpha, beta, bias = parameters.for_attention(torch.float32)
            parts, rows = near_far_parts(
                call.q, call.k, call.v, alpha, beta, feature_bias=bias, scale=call.scale, key_mask=call.key_mask,
                is_causal=call.causal, cu_seqlens=call.cu_seqlens, **near,
            ), rows_that_count(call)  # fmt: skip
        fits.setdefault(place, NearFarFit()).add(wanted, *parts, rows)

    show(watch)
    return fits


def set_weights(
    own: Mapping[Place, LLNParameters], fits: Mapping[Place, NearFarFit], solve: Callable[[NearFarFit], Tensor]
) -> None:
    """Weights as `solve` has them, and the error that is left of the fit."""
    if fits and not any(bool(fit.sums.gram.any()) for fit in fits.values()):
        warnings.warn(
            "in all data to calibrate on all keys are near, where the weights have no say: they stay neutral. Calibrate on "
            "longer inputs, or give a smaller block_size",
            stacklevel=4,
        )
    for place, fit in fits.items():
        found = solve(fit)
        own[place].set(weights=found)
        own[place].fit_error = fit.error(found)
