"""Inputs the instrument tests share."""

import numpy
import torch
from torch import Tensor


def gaussian(length: int, dim: int, sigma: float = 1.0, *, batch: int = 1, heads: int = 1, seed: int = 0,
             dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(batch, heads, length, dim, generator=generator, dtype=torch.float64) * sigma for _ in range(2))
    return q.to(dtype), k.to(dtype)


def second_eigenvalue(matrix: Tensor) -> Tensor:
    """|lambda_2| of each matrix by a full eigen-decomposition: take out the eigenvalue nearest to 1, keep the largest."""
    values = torch.from_numpy(numpy.linalg.eigvals(matrix.double().numpy()).astype(complex))
    values = values.scatter(-1, (values - 1).abs().argmin(-1, keepdim=True), 0.0)
    return values.abs().amax(-1)
