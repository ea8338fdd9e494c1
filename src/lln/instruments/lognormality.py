"""Is an attention matrix log-normal? Moments of the logs of its entries, and their distance to the fitted normal.

    log P_ij ~ N(mu, sigma^2),   mu = -ln N - sigma_sm^2 / 2,   sigma^2 = sigma_sm^2        (Proposition 3.1, for softmax)

Moments are over all entries that may be non-zero, natural logs, accumulated in chunks of rows; the variance is unbiased.
The Kolmogorov-Smirnov distance and the quantiles come from whole rows, evenly spaced, up to `quantile_entries` entries.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lln.instruments.attention import AttentionMatrix, as_attention
from lln.instruments.softmax import SoftmaxMatrix
from lln.instruments.temperature import score_variance


@dataclass(frozen=True)
class LogNormality:
    """All (B, H) but for the quantiles, (B, H, Q): standard normal ones and those of the standardised logs."""

    mean: Tensor
    variance: Tensor
    skewness: Tensor  # 0 for a log-normal matrix
    kurtosis: Tensor  # excess; 0 for a log-normal matrix
    ks_distance: Tensor  # Kolmogorov-Smirnov distance to the normal with this mean and variance
    normal_quantiles: Tensor
    measured_quantiles: Tensor
    predicted_mean: Tensor | None  # Proposition 3.1; None where its assumption, softmax of q and k, does not apply
    predicted_variance: Tensor | None


def lognormality(
    attention: AttentionMatrix | Tensor,
    *,
    rows: int | None = None,
    quantiles: int = 99,
    quantile_entries: int = 1 << 18,
) -> LogNormality:
    """Moments and log-normality of the entries of P, from `rows` evenly spaced rows; None uses all."""
    attention = as_attention(attention)
    chosen = _spaced(attention, rows)
    mean, variance, skewness, kurtosis = _moments(attention, chosen)
    distance, expected, measured = _against_normal(attention, mean, variance, quantiles, quantile_entries)
    predicted_mean = predicted_variance = None
    if isinstance(attention, SoftmaxMatrix) and not attention.is_causal and attention.mask is None:
        predicted_variance = score_variance(
            attention.q, attention.k, scale=attention.scale, key_mask=attention.key_mask
        )
        keys = attention.shape[3] if attention.key_mask is None else attention.key_mask.sum(-1, keepdim=True)
        predicted_mean = -torch.as_tensor(keys, dtype=torch.float64).log() - predicted_variance / 2
    return LogNormality(
        mean, variance, skewness, kurtosis, distance, expected, measured, predicted_mean, predicted_variance
    )


def _spaced(attention: AttentionMatrix, rows: int | None) -> Tensor:
    queries = attention.shape[2]
    count = queries if rows is None else min(rows, queries)
    if count < 1:
        raise ValueError(f"rows must be at least 1, not {rows}")
    return torch.linspace(0, queries - 1, count, device=attention.device).round().long().unique()


def _logs(attention: AttentionMatrix, index: Tensor) -> tuple[Tensor, Tensor]:
    """log P of these rows with 0 for what does not count, and which entries count."""
    logs = attention.log_rows(index).double()
    counts = torch.isfinite(logs)
    if attention.row_mask is not None:
        counts = counts & attention.row_mask[:, None, index, None]
    return logs.masked_fill(~counts, 0.0), counts


def _moments(attention: AttentionMatrix, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count = total = torch.zeros(attention.shape[:2], dtype=torch.float64, device=attention.device)
    for index in attention.row_chunks(chosen):
        logs, counts = _logs(attention, index)
        count = count + counts.sum((-2, -1))
        total = total + logs.sum((-2, -1))
    mean = total / count
    central = [torch.zeros_like(mean) for _ in range(3)]
    for index in attention.row_chunks(chosen):
        logs, counts = _logs(attention, index)
        off = (logs - mean[..., None, None]).masked_fill(~counts, 0.0)
        square = off * off
        for at, power in enumerate((square, square * off, square * square)):
            central[at] = central[at] + power.sum((-2, -1))
    second, third, fourth = (x / count for x in central)
    return mean, central[0] / (count - 1), third / second**1.5, fourth / second.square() - 3


def _against_normal(
    attention: AttentionMatrix, mean: Tensor, variance: Tensor, quantiles: int, entries: int
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, _, keys = attention.shape
    chosen = _spaced(attention, max(1, entries // keys))
    pieces = [_logs(attention, index) for index in attention.row_chunks(chosen)]
    logs, counts = (torch.cat(parts, dim=2) for parts in zip(*pieces, strict=True))
    levels = torch.arange(1, quantiles + 1, dtype=torch.float64, device=attention.device) / (quantiles + 1)
    expected = torch.special.ndtri(levels)
    distance = torch.empty(batch, heads, dtype=torch.float64, device=attention.device)
    measured = torch.empty(batch, heads, quantiles, dtype=torch.float64, device=attention.device)
    for b in range(batch):
        for h in range(heads):
            scaled = ((logs[b, h][counts[b, h]] - mean[b, h]) / variance[b, h].sqrt()).sort().values
            distance[b, h] = distance_to_normal(scaled)
            measured[b, h] = scaled[(levels * (len(scaled) - 1)).round().long()]
    return distance, expected.expand(batch, heads, -1), measured


def distance_to_normal(standardised: Tensor) -> Tensor:
    """Kolmogorov-Smirnov distance of a sorted sample, one dimension, to the standard normal."""
    cumulative = torch.special.ndtr(standardised)
    steps = torch.arange(len(standardised) + 1, dtype=torch.float64, device=standardised.device) / len(standardised)
    return torch.maximum((steps[1:] - cumulative).max(), (cumulative - steps[:-1]).max())
