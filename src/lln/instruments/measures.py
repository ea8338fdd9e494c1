"""What a probe measures of one captured attention call: named columns with one number per head."""

from collections.abc import Callable

import torch
from torch import Tensor

from lln.instruments.attention import AttentionMatrix
from lln.instruments.bias import bias
from lln.instruments.capture import Captured
from lln.instruments.entropy import collision_entropy, sampled_entropy, variance
from lln.instruments.lognormality import lognormality
from lln.instruments.spectrum import spectral_gap
from lln.instruments.temperature import Cross, lln_temperature, score_variance, temperature

Columns = dict[str, Tensor]  # name -> (B, H)


def _temperature(call: Captured, attention: AttentionMatrix, rows: int) -> Columns:
    if call.q is None or call.k is None:
        return {}
    mask = call.key_mask if call.key_mask is not None else _square_mask(attention)
    names: tuple[tuple[str, Cross], ...] = (
        ("temperature", "goodman"),
        ("temperature_without_cross", "none"),
        ("temperature_full", "full"),
    )
    columns = {name: temperature(call.q, call.k, cross=cross, scale=call.scale, key_mask=mask) for name, cross in names}
    columns["score_variance"] = score_variance(call.q, call.k, scale=call.scale, key_mask=mask)
    if call.alpha is not None and call.beta is not None:
        columns["lln_temperature"] = lln_temperature(call.q, call.k, call.alpha, call.beta, key_mask=mask)
    return columns


def _matching(call: Captured, attention: AttentionMatrix, rows: int) -> Columns:
    if call.alpha is None or call.beta is None:
        return {}
    batch, heads = attention.shape[:2]
    columns = {}
    for name, x in (("alpha", call.alpha), ("beta", call.beta)):
        x = x.double()
        x = x.mean((-2, -1)) if x.dim() == 4 else x.mean()  # one number per head
        if x.dim() == 2 and x.shape[1] not in (1, heads):
            x = x.repeat_interleave(heads // x.shape[1], dim=1)
        columns[name] = x.expand(batch, heads)
    return columns


def _entropy(call: Captured, attention: AttentionMatrix, rows: int) -> Columns:
    estimate = sampled_entropy(attention, rows, torch.Generator().manual_seed(0))
    return {"entropy": estimate.value, "entropy_error": estimate.standard_error}


def _collision(call: Captured, attention: AttentionMatrix, rows: int) -> Columns:
    return {"collision_entropy": collision_entropy(attention), "variance": variance(attention)}


def _gap(call: Captured, attention: AttentionMatrix, rows: int) -> Columns:
    if attention.shape[2] != attention.shape[3]:
        return {}
    spectrum = spectral_gap(attention, tolerance=1e-2)
    return {"gap": spectrum.gap, "gap_error": spectrum.error}


def _lognormality(call: Captured, attention: AttentionMatrix, rows: int) -> Columns:
    found = lognormality(attention, rows=rows, quantiles=1, quantile_entries=1 << 14)
    return {
        "log_mean": found.mean, "log_variance": found.variance, "log_skewness": found.skewness,
        "log_kurtosis": found.kurtosis, "log_ks": found.ks_distance,
    }  # fmt: skip


def _bias(call: Captured, attention: AttentionMatrix, rows: int) -> Columns:
    row_entropy = sampled_entropy(attention, rows, torch.Generator().manual_seed(0)).value
    found = bias(attention, row_entropy)
    return {"biased_bits": found.biased, "unbiased_bits": found.unbiased, "top_share": found.top_share}


MEASURES: dict[str, Callable[[Captured, AttentionMatrix, int], Columns]] = {
    "temperature": _temperature,
    "matching": _matching,
    "entropy": _entropy,
    "collision": _collision,
    "gap": _gap,
    "lognormality": _lognormality,
    "bias": _bias,
}


@torch.no_grad()
def measure(call: Captured, names: tuple[str, ...], rows: int) -> Columns:
    """The columns of these measures for one call, averaged over its samples: name -> (H,)."""
    attention = call.build()
    columns: Columns = {}
    for name in names:
        columns |= MEASURES[name](call, attention, rows)
    return {name: value.mean(0) for name, value in columns.items()}


def _square_mask(attention: AttentionMatrix) -> Tensor | None:
    return attention.row_mask if attention.shape[2] == attention.shape[3] else None
