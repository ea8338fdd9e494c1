"""What an instrument needs to know about an attention, whatever its mechanism: rows of its matrix and products with it.

    P (B, H, Nq, Nk), non-negative, P 1 = 1        the attention matrix
    rows(i)   -> P_i.            some rows, normalised
    apply(V)  -> P V             attention with V as the values
    transpose(X) -> P^T X        what a gradient with respect to the values computes

Every instrument is written once, on these, so it never asks how the matrix is made or holds all of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

ENTRIES_AT_ONCE = 1 << 22  # rows are taken in chunks of at most this many entries over batch and heads


class AttentionMatrix(ABC):
    """A batch of row-stochastic matrices, one for each sample and head."""

    is_causal: bool = False
    row_mask: Tensor | None = None  # (B, Nq), True for the rows that count; None means all
    width: int = 32  # how many columns `apply` likes best in one call

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape  # (B, H, Nq, Nk)
        self.dtype = dtype
        self.device = device

    @abstractmethod
    def rows(self, index: Tensor) -> Tensor:
        """P[:, :, index], shape (B, H, len(index), Nk)."""

    @abstractmethod
    def apply(self, values: Tensor) -> Tensor:
        """P @ values, shape (B, H, Nq, C) from (B, H, Nk, C)."""

    def transpose(self, x: Tensor) -> Tensor:
        """P^T @ x, shape (B, H, Nk, C) from (B, H, Nq, C); summed over chunks of rows."""
        batch, heads, _, keys = self.shape
        total = x.new_zeros(batch, heads, keys, x.shape[-1])
        for index in self.row_chunks():
            total += self.rows(index).mT.to(x.dtype) @ x[:, :, index]
        return total

    def log_rows(self, index: Tensor) -> Tensor:
        """Natural logarithm of `rows`; -inf where an entry is zero."""
        return self.rows(index).log()

    def diagonal(self) -> Tensor:
        """P_ii, shape (B, H, N)."""
        self.require_square("the diagonal")
        return torch.cat(
            [self.rows(i).gather(-1, i.expand(*self.shape[:2], -1)[..., None]) for i in self.row_chunks()], 2
        )[..., 0]

    def row_chunks(self, index: Tensor | None = None) -> Iterator[Tensor]:
        """The given row numbers (all of them by default), in pieces that fit in memory."""
        batch, heads, queries, keys = self.shape
        if index is None:
            index = torch.arange(queries, device=self.device)
        size = max(1, ENTRIES_AT_ONCE // max(1, batch * heads * keys))
        yield from index.split(size)

    def dense(self) -> Tensor:
        """The whole matrix, for small N."""
        return self.rows(torch.arange(self.shape[2], device=self.device))

    def row_weights(self) -> Tensor:
        """One over the number of rows that count, zero for the others: (B, 1, Nq), float64."""
        if self.row_mask is None:
            return torch.full(
                (self.shape[0], 1, self.shape[2]), 1.0 / self.shape[2], dtype=torch.float64, device=self.device
            )
        counted = self.row_mask.double()
        return (counted / counted.sum(-1, keepdim=True))[:, None]

    def rows_that_count(self) -> Tensor:
        """How many rows count in each sample, shape (B, 1)."""
        if self.row_mask is None:
            return torch.full((self.shape[0], 1), self.shape[2], device=self.device)
        return self.row_mask.sum(-1, keepdim=True)

    def require_square(self, what: str) -> None:
        """Raise ValueError unless there are as many queries as keys, which `what` needs."""
        if self.shape[2] != self.shape[3]:
            raise ValueError(
                f"{what} needs a square attention matrix; this one has {self.shape[2]} queries and {self.shape[3]} keys. "
                "Cross-attention has an entropy and a bias, but no eigenvalues."
            )


def as_attention(attention: "AttentionMatrix | Tensor") -> AttentionMatrix:
    """An attention as it is; a tensor is taken for its matrix (B, H, Nq, Nk) and checked."""
    if isinstance(attention, AttentionMatrix):
        return attention
    from lln.instruments.given import DenseMatrix

    return DenseMatrix(attention)
