"""The eigenvalue of largest modulus of a matrix known only by its products: block Arnoldi with thick restarts.

    K = span(X, A X, ..., A^(m-1) X),  V an orthonormal basis,  H = V^T A V,  H y = theta y,  u^H H = theta u^H
    residual r = A V y - theta V y,    error of theta ~ |r| / |u^H y|        (unit y, u: 1/|u^H y| is theta's condition number)

Attention matrices are far from normal and lambda_2 is often a complex pair with others close behind, so a power iteration
does not converge and the residual alone understates the error; a block as wide as the head sees all of them at once.
A basis of LARGEST blocks is compressed to the span of its KEPT best blocks of Ritz vectors, so memory and the small
eigenproblem stay bounded however many products are needed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lln.instruments.eigen import eigenpairs

CHECK_AT = (4, 6)  # eigenvalues of the small matrix cost as much as a few products: look only now and then
LARGEST = 8  # blocks in the basis
KEPT = 3


@dataclass(frozen=True)
class Ritz:
    eigenvalue: Tensor  # (B, H), complex, above the real axis
    error: Tensor  # (B, H), estimated
    products: int


def dominant_eigenvalue(
    apply: Callable[[Tensor], Tensor], start: Tensor, *, tolerance: float, max_products: int
) -> Ritz:
    """`apply` maps (B, H, N, C) to the same shape; `start` is the first block. Stops when every error is below tolerance."""
    length, width = start.shape[2:]
    basis = torch.linalg.qr(start).Q  # (B, H, N, C)
    images = newest = apply(basis)
    products = 1
    while True:
        exhausted = basis.shape[-1] + width > length
        full = basis.shape[-1] >= LARGEST * width
        last = products >= max_products or exhausted
        next_block = None if last else _orthonormal_remainder(newest, basis)
        if last or full or products in CHECK_AT:
            small = (basis.mT @ images).double()  # (B, H, M, M)
            values, vectors = eigenpairs(small)
            found = _best_pair(basis, images, small, values, vectors, products)
            if last or bool((found.error < tolerance).all()):
                return found
            if full:
                best = _leading_subspace(values, vectors, KEPT * width).to(basis.dtype)  # (B, H, M, kept)
                basis, images = basis @ best, images @ best
        assert next_block is not None
        newest = apply(next_block)
        basis, images = torch.cat([basis, next_block], -1), torch.cat([images, newest], -1)
        products += 1


def _orthonormal_remainder(block: Tensor, basis: Tensor) -> Tensor:
    """What of the block is new to the basis. Twice: one pass leaves rounding errors that grow with the basis."""
    for _ in range(2):
        block = block - basis @ (basis.mT @ block)
        block = torch.linalg.qr(block).Q
    return block


def _leading_subspace(values: Tensor, vectors: Tensor, size: int) -> Tensor:
    """An orthonormal real basis of the span of the eigenvectors of largest modulus."""
    order = values.abs().argsort(-1, descending=True)[..., :size]
    chosen = vectors.take_along_dim(order[..., None, :], dim=-1)
    # A conjugate pair shares its real and imaginary part: take the one from its upper, the other from its lower member.
    lower = (values.take_along_dim(order, dim=-1).imag < 0)[..., None, :]
    return torch.linalg.qr(torch.where(lower, chosen.imag, chosen.real)).Q


def _best_pair(basis: Tensor, images: Tensor, small: Tensor, values: Tensor, vectors: Tensor, products: int) -> Ritz:
    best = values.abs().argmax(-1, keepdim=True)  # (B, H, 1)
    theta = values.gather(-1, best)
    y = vectors.take_along_dim(best[..., None, :], dim=-1)  # (B, H, M, 1)
    # Real and imaginary part apart: a complex copy of the basis would double its memory.
    parts = torch.cat([y.real, y.imag], -1).to(basis.dtype)
    image, point = (torch.view_as_complex((x @ parts).double().contiguous()) for x in (images, basis))  # (B, H, N)
    residual = torch.linalg.vector_norm(image - theta * point, dim=-1)
    u = _left_eigenvector(small, theta)
    condition = 1 / (u.mH @ y).abs()[..., 0, 0].clamp(min=torch.finfo(torch.float64).eps)
    rounding = 4 * torch.finfo(basis.dtype).eps * torch.linalg.matrix_norm(small)
    theta = theta[..., 0]
    return Ritz(torch.complex(theta.real, theta.imag.abs()), (residual + rounding) * condition, products)


def _left_eigenvector(small: Tensor, theta: Tensor) -> Tensor:
    """Two steps of inverse iteration: cheaper than a second eigen-decomposition."""
    size = small.shape[-1]
    scale = small.abs().amax((-2, -1)).clamp(min=torch.finfo(small.dtype).tiny)
    shift = (theta[..., 0] + 1e-13 * scale).conj()  # beside the eigenvalue: the matrix must not be exactly singular
    shifted = small.mT.to(theta.dtype) - shift[..., None, None] * torch.eye(
        size, dtype=theta.dtype, device=small.device
    )
    factored = torch.linalg.lu_factor(shifted)
    u = torch.ones(*small.shape[:-1], 1, dtype=theta.dtype, device=small.device)
    for _ in range(2):
        u = torch.linalg.lu_solve(*factored, u)
        u = u / torch.linalg.vector_norm(u, dim=-2, keepdim=True)
    return u
