"""Eigenvalues of small dense matrices, with a second attempt: LAPACK builds differ in the degenerate matrices they fail on."""

import numpy
import torch
from torch import Tensor


def eigenvalues(matrix: Tensor) -> Tensor:
    try:
        return torch.linalg.eigvals(matrix)
    except RuntimeError:  # what torch.linalg raises when LAPACK gives up
        return torch.from_numpy(numpy.linalg.eigvals(matrix.cpu().numpy()).astype(numpy.complex128)).to(matrix.device)


def eigenpairs(matrix: Tensor) -> tuple[Tensor, Tensor]:
    try:
        values, vectors = torch.linalg.eig(matrix)
        return values, vectors
    except RuntimeError:  # what torch.linalg raises when LAPACK gives up
        found = numpy.linalg.eig(matrix.cpu().numpy())
        return (
            torch.from_numpy(found.eigenvalues.astype(numpy.complex128)).to(matrix.device),
            torch.from_numpy(found.eigenvectors.astype(numpy.complex128)).to(matrix.device),
        )
