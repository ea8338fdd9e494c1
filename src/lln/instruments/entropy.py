"""Entropy of attention, in bits: how many keys a query looks at, as an exponent of two.

    H(P)  = -1/N sum_i sum_j P_ij log2 P_ij                     (eq. 7)
    H2(P) = -1/N sum_i log2 sum_j P_ij^2                        collision entropy, never above H

H takes O(N^2) time and O(N) memory; sampled rows give it with a standard error. For a linear attention H2 and the variance
of the entries need no matrix at all, since sum_j P_ij^2 = A_i (Phi_k^T Phi_k) A_i^T with A = Phi_q / D.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lln.instruments.attention import AttentionMatrix, as_attention
from lln.instruments.linear import LinearMatrix


@dataclass(frozen=True)
class Estimate:
    """A mean over sampled rows and its standard error, (B, H) each."""

    value: Tensor
    standard_error: Tensor


def entropy(attention: AttentionMatrix | Tensor) -> Tensor:
    """Exact entropy H(P) of eq. 7 in bits over the unmasked rows, (B, H) float64."""
    attention = as_attention(attention)
    per_row = torch.cat([_row_entropy(attention, index) for index in attention.row_chunks()], dim=2)  # (B, H, Nq)
    return (per_row * attention.row_weights()).sum(-1)


def sampled_entropy(
    attention: AttentionMatrix | Tensor, rows: int = 256, generator: torch.Generator | None = None
) -> Estimate:
    """Entropy H(P) estimated from `rows` rows drawn without replacement, the same for all heads of a sample."""
    attention = as_attention(attention)
    queries = attention.shape[2]
    if rows < 2:
        raise ValueError(f"a standard error needs at least two rows, not {rows}")
    if rows >= queries:
        exact = entropy(attention)
        return Estimate(exact, torch.zeros_like(exact))
    index = torch.randperm(queries, generator=generator)[:rows].to(attention.device)
    per_row = torch.cat([_row_entropy(attention, piece) for piece in attention.row_chunks(index)], dim=2)  # (B, H, R)
    counts = torch.ones_like(per_row) if attention.row_mask is None else attention.row_mask[:, None, index].double()
    drawn = counts.sum(-1)  # (B, H)
    if (drawn < 2).any():
        raise ValueError(f"fewer than two of the {rows} sampled rows count in some sample; sample more rows")
    mean = (per_row * counts).sum(-1) / drawn
    spread = ((per_row - mean[..., None]).square() * counts).sum(-1) / (drawn - 1)
    left = 1 - drawn / attention.rows_that_count()  # drawing without replacement leaves less to chance
    return Estimate(mean, (spread / drawn * left).sqrt())


def collision_entropy(attention: AttentionMatrix | Tensor) -> Tensor:
    """H2(P), averaged over rows like H, (B, H); O(N d^2) for linear attentions."""
    attention = as_attention(attention)
    return -(_row_collisions(attention).log2() * attention.row_weights()).nan_to_num(0.0).sum(-1)


def variance(attention: AttentionMatrix | Tensor) -> Tensor:
    """Variance of the entries inside a row, averaged over rows (Theorem 3.4), (B, H); O(N d^2) for linear attentions.

    1/N sum_j (P_ij - 1/N)^2 = (sum_j P_ij^2 - 1/N) / N, with N the number of keys.
    """
    attention = as_attention(attention)
    square = attention.shape[2] == attention.shape[3]
    keys = attention.rows_that_count().double() if square else attention.shape[3]
    return ((_row_collisions(attention) * attention.row_weights()).sum(-1) - 1 / keys) / keys


def _row_entropy(attention: AttentionMatrix, index: Tensor) -> Tensor:
    return torch.special.entr(attention.rows(index).double()).sum(-1) / torch.log(
        torch.tensor(2.0, dtype=torch.float64)
    )


def _row_collisions(attention: AttentionMatrix) -> Tensor:
    """sum_j P_ij^2, (B, H, Nq) float64."""
    if isinstance(attention, LinearMatrix) and not attention.is_causal:
        a, phi_k = attention.factors
        return ((a @ (phi_k.mT @ phi_k)) * a).sum(-1)
    return torch.cat([attention.rows(index).double().square().sum(-1) for index in attention.row_chunks()], dim=2)
