"""Biased and unbiased concentration.

With c_j = 1/N sum_i P_ij the mean attention a key receives, the concentration of the rows splits exactly:

    log2 N - H(P)  =  (log2 N - H(c))  +  (H(c) - H(P))
    concentration     biased: the same      unbiased: every query
                      keys for all queries  has its own keys

Both terms are non-negative. The second is the mutual information of query and key. When all queries look at the same few
keys, entropy falls while the spectral gap stays near one (section 3.2.2): then the first term holds all the bits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lln.instruments.attention import AttentionMatrix, as_attention
from lln.instruments.entropy import entropy


@dataclass(frozen=True)
class Bias:
    """Bits, (B, H) each; `columns` (B, H, Nk) is c, `top_share` its largest entry."""

    biased: Tensor
    unbiased: Tensor
    top_share: Tensor
    columns: Tensor

    @property
    def share(self) -> Tensor:
        """Biased bits over all bits: 1 when every query looks at the same keys, 0 when no key is favoured."""
        return self.biased / (self.biased + self.unbiased).clamp(min=torch.finfo(torch.float64).tiny)


def bias(attention: AttentionMatrix | Tensor, row_entropy: Tensor | None = None) -> Bias:
    """Split the concentration of P into biased and unbiased bits. Pass `row_entropy` (B, H) if known: only it costs O(N^2)."""
    attention = as_attention(attention)
    if row_entropy is None:
        row_entropy = entropy(attention)
    columns = mean_attention(attention)
    column_entropy = torch.special.entr(columns).sum(-1) / torch.log(torch.tensor(2.0, dtype=torch.float64))
    square = attention.shape[2] == attention.shape[3]
    keys = (
        attention.rows_that_count().double() if square else torch.tensor(float(attention.shape[3]), dtype=torch.float64)
    )
    biased = (keys.log2() - column_entropy).clamp(min=0)
    return Bias(biased, (column_entropy - row_entropy).clamp(min=0), columns.amax(-1), columns)


def mean_attention(attention: AttentionMatrix) -> Tensor:
    """c = P^T 1 / N over the rows that count, (B, H, Nk) float64."""
    batch, heads, queries, _ = attention.shape
    weights = attention.row_weights().expand(batch, heads, queries)[..., None]
    return attention.transpose(weights.to(attention.dtype))[..., 0].double()
