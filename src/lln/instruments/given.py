"""Attentions computed elsewhere: given as a whole matrix, or only as a function of the values."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.instruments.attention import AttentionMatrix
from lln.instruments.checks import check_stochastic, sum_tolerance


class DenseMatrix(AttentionMatrix):
    """The matrix itself, (B, H, Nq, Nk). `row_mask` (B, Nq) names the rows that count (others may be anything finite)."""

    def __init__(self, matrix: Tensor, row_mask: Tensor | None = None) -> None:
        check_stochastic(matrix, row_mask)
        dtype = torch.float64 if matrix.dtype == torch.float64 else torch.float32
        matrix = matrix.detach().to(dtype)
        if row_mask is not None and matrix.shape[2] == matrix.shape[3]:
            matrix = matrix.masked_fill(~row_mask[:, None, None], 0.0)
        self.matrix = matrix
        batch, heads, queries, keys = matrix.shape
        super().__init__((batch, heads, queries, keys), dtype, matrix.device)
        self.row_mask = row_mask
        self.is_causal = matrix.shape[2] == matrix.shape[3] and not bool(matrix.triu(1).any())

    def rows(self, index: Tensor) -> Tensor:
        return self.matrix[:, :, index]

    def apply(self, values: Tensor) -> Tensor:
        return self.matrix @ values.to(self.dtype)

    def transpose(self, x: Tensor) -> Tensor:
        return self.matrix.mT @ x.to(self.dtype)


class FunctionMatrix(AttentionMatrix):
    """Only V -> P V is known, for self-attention of length N; V has `width` columns.

    Rows come from the gradient: for f(V) = P V, the derivative of <f(V), E> with respect to V is P^T E, whose columns are
    rows of P when E holds unit vectors. The function must therefore be differentiable with respect to V, and linear in it.
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], batch: int, heads: int, length: int, width: int,
        *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__((batch, heads, length, length), dtype, torch.device(device))
        self.function = function
        self.width = width
        ones = torch.ones(batch, heads, length, width, dtype=dtype, device=device)
        out = function(ones)
        if out.shape != ones.shape:
            raise ValueError(
                f"the function must keep the shape of the values, {tuple(ones.shape)}; it gave {tuple(out.shape)}"
            )
        off = (out - 1).abs().max().item()
        if not off <= sum_tolerance(dtype):
            raise ValueError(
                f"attention to values that are all one must give one; here it is off by {off:.3g}, so the rows of its matrix "
                "do not sum to one"
            )

    def apply(self, values: Tensor) -> Tensor:
        with torch.no_grad():
            return self._by_pieces(values, self.function)

    def transpose(self, x: Tensor) -> Tensor:
        def pull_back(piece: Tensor) -> Tensor:
            with torch.enable_grad():
                values = torch.zeros_like(piece, requires_grad=True)
                out = self.function(values)
                if not out.requires_grad:
                    raise ValueError(
                        "rows of a function of values come from its gradient, but it is not differentiable"
                    )
                return torch.autograd.grad(out, values, piece)[0]

        return self._by_pieces(x, pull_back)

    def rows(self, index: Tensor) -> Tensor:
        batch, heads, length, _ = self.shape
        units = F.one_hot(index, length).to(self.dtype).mT.expand(batch, heads, length, -1)
        rows = self.transpose(units).mT
        if rows.min() < -sum_tolerance(self.dtype):
            raise ValueError(
                f"the function's matrix has negative entries, down to {rows.min().item():.3g}, so it is not an attention"
            )
        return rows.clamp(min=0)

    def _by_pieces(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        pieces = []
        for piece in x.to(self.dtype).split(self.width, dim=-1):
            full = F.pad(piece, (0, self.width - piece.shape[-1])).contiguous()
            pieces.append(function(full)[..., : piece.shape[-1]])
        return torch.cat(pieces, dim=-1)
