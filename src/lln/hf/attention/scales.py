"""Where a call's alpha, beta, feature bias and mixing come from: attached parameters, the config, or the sample itself."""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.conversion.parameters import LLNParameters
from lln.hf.attention.call import Call
from lln.hf.options import LLNOptions
from lln.matching import match_moments
from lln.ops.lln.op import compute_dtype
from lln.ops.moments.statistics import statistics_of


class Scales(NamedTuple):
    alpha: Tensor  # (S or 1, Hq, 1, 1 or D)
    beta: Tensor  # (S or 1, Hk, 1, 1 or D)
    feature_bias: Tensor | None  # (S or 1, Hq, 1, D)
    mix: Tensor | float | None  # (Hq,), a number, or (B or 1, Hq or 1, N) where rows differ; None in near-far attention


def scales_for(call: Call, options: LLNOptions, parameters: LLNParameters | None, *, centred: bool = False) -> Scales:
    """centred: the mean key is subtracted where alpha and beta are matched to the sample, whatever the options say."""
    dtype = compute_dtype(call.q.dtype)
    if parameters is not None:
        return Scales(*parameters.for_attention(dtype), parameters.mix)
    if options.alpha is not None and options.beta is not None:
        alpha = _given(options.alpha, call.q, "alpha", dtype)
        beta = _given(options.beta, call.k, "beta", dtype)
        return Scales(alpha, beta, _mean_key_bias(call, options.subtract_mean_key, beta), options.mix)
    if call.causal or call.cross:
        what = "causal attention" if call.causal else "cross-attention of a decoder"
        raise ValueError(
            f"{what} needs alpha and beta: matching them to the whole sequence would let the future into the past. "
            "Give them, model.config.lln = {'alpha': 2.0, 'beta': 2.0}, or measure them on data, "
            "lln.hf.convert(model, calibrate=texts)"
        )
    return _matched_to_sample(call, options, dtype, centred or options.subtract_mean_key)


def _matched_to_sample(call: Call, options: LLNOptions, dtype: torch.dtype, centred: bool) -> Scales:
    alpha, beta = match_moments(
        call.q, call.k, target=options.target, key_mask=call.key_mask, cu_seqlens=call.cu_seqlens,
        scale=call.scale, center_keys=centred,
    )  # fmt: skip
    alpha, beta = alpha.to(dtype), beta.to(dtype)
    return Scales(alpha, beta, _mean_key_bias(call, centred, beta), options.mix)


def _mean_key_bias(call: Call, centred: bool, beta: Tensor) -> Tensor | None:
    """w = -beta mu of each sample. A causal or cross-attention may not look at the sample: there convert measures it."""
    if not centred:
        return None
    if call.causal or call.cross:
        raise ValueError(
            "config.lln['subtract_mean_key'] reads the whole sequence, the future too: a causal model gets its mean keys "
            "from data, lln.hf.convert(model, calibrate=texts)"
        )
    statistics = statistics_of(call.q, call.k, key_mask=call.key_mask, cu_seqlens=call.cu_seqlens)
    return _spread(-beta * statistics.mean_key.to(beta.dtype)[:, :, None], call)


def _spread(bias: Tensor, call: Call) -> Tensor:
    """(S, Hk, 1, D) -> (S, Hq, 1, D)."""
    return bias.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)


def _given(value: float | list[float], x: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    if isinstance(value, (list, tuple)) and len(value) != x.shape[1]:
        raise ValueError(f"config.lln[{name!r}] has {len(value)} numbers, but the model has {x.shape[1]} such heads")
    return torch.as_tensor(value, dtype=dtype, device=x.device).reshape(1, -1, 1, 1)
