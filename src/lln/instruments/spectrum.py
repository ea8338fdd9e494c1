"""Spectral gap: how fast the Markov chain with the attention matrix as its transitions forgets where it started.

    gamma = 1 - |lambda_2|        (section 3.2.2), lambda_2 the second largest eigenvalue of P by modulus

With Pc = P - 1 mu^T, mu the mean row, the eigenvalue 1 is taken out and the others stay (Wielandt), so |lambda_2| is the
spectral radius of Pc. Four ways to it, chosen by what is known of P:

- linear:   P = A Phi_k^T gives the same non-zero eigenvalues as the small matrix Phi_k^T (A - mean A), F x F: exact, O(N F^2).
- causal:   P is triangular, so its eigenvalues are its diagonal: exact.
- dense:    eigenvalues of the N x N matrix, for small N.
- arnoldi:  only products with values, O(N) memory, with an error estimate (`lln.instruments.arnoldi`).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lln.instruments.arnoldi import dominant_eigenvalue
from lln.instruments.attention import AttentionMatrix, as_attention
from lln.instruments.eigen import eigenvalues
from lln.instruments.linear import LinearMatrix

Method = Literal["auto", "linear", "causal", "dense", "arnoldi"]

DENSE_UP_TO = 192  # longer matrices are faster by products
BLOCKS_IN_LENGTH = 16  # a block wider than this share of the length would span everything at once


@dataclass(frozen=True)
class Spectrum:
    """gap = 1 - |lambda2|, (B, H) each; `error` estimates the error of |lambda2|; `products` counts the products P V."""

    gap: Tensor
    lambda2: Tensor  # complex; of a conjugate pair, the one above the real axis
    error: Tensor
    method: str
    products: int = 0


def spectral_gap(
    attention: AttentionMatrix | Tensor,
    method: Method = "auto",
    *,
    tolerance: float = 1e-4,
    max_products: int = 40,
    generator: torch.Generator | None = None,
) -> Spectrum:
    """Spectral gap of self-attention per sample and head. `tolerance` and `max_products` apply to Arnoldi only."""
    attention = as_attention(attention)
    attention.require_square("the spectral gap")
    if method == "auto":
        method = _best_method(attention)
    if attention.shape[2] == 1:
        return _exact(torch.zeros(attention.shape[:2], dtype=torch.complex128, device=attention.device), method)
    if method == "linear":
        return _exact(_largest(eigenvalues(_small_matrix(attention))), method)
    if method == "causal":
        return _exact(_second_on_the_diagonal(attention), method)
    if method == "dense":
        return _exact(_largest(eigenvalues(_centred_dense(attention))), method)
    if method == "arnoldi":
        found = dominant_eigenvalue(
            lambda x: centred_apply(attention, x), _start_block(attention, generator),
            tolerance=tolerance, max_products=max_products,
        )  # fmt: skip
        return Spectrum(1 - found.eigenvalue.abs(), found.eigenvalue, found.error, method, found.products)
    raise ValueError(f"method must be 'auto', 'linear', 'causal', 'dense' or 'arnoldi', not {method!r}")


def top_singular_value(
    attention: AttentionMatrix | Tensor,
    *,
    tolerance: float = 1e-4,
    max_products: int = 40,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Largest singular value of the centred matrix Pc, (B, H).

    Its square is the variance in the direction of the major principal component, which Theorem 3.3 equates with lambda_2^2.
    That needs Pc to be normal; in general the singular value is larger.
    """
    attention = as_attention(attention)
    attention.require_square("the centred matrix's singular value")
    if isinstance(attention, LinearMatrix) and not attention.is_causal:
        a, phi_k = _centred_factors(attention)
        small = torch.linalg.qr(a, mode="r").R @ torch.linalg.qr(phi_k, mode="r").R.mT
        return torch.linalg.matrix_norm(small, 2)
    if attention.shape[2] <= DENSE_UP_TO:
        return torch.linalg.matrix_norm(_centred_dense(attention), 2)
    found = dominant_eigenvalue(
        lambda x: centred_transpose(attention, centred_apply(attention, x)), _start_block(attention, generator),
        tolerance=tolerance, max_products=max_products,
    )  # fmt: skip
    return found.eigenvalue.abs().sqrt()


def centred_apply(attention: AttentionMatrix, x: Tensor) -> Tensor:
    """Pc x = P x minus its mean over the rows that count, (B, H, N, C)."""
    return _centre(attention, attention.apply(x))


def centred_transpose(attention: AttentionMatrix, x: Tensor) -> Tensor:
    """Pc^T x = P^T (x minus its mean over the rows that count)."""
    product = attention.transpose(_centre(attention, x))
    return product if attention.row_mask is None else product * attention.row_mask[:, None, :, None]


def _centre(attention: AttentionMatrix, x: Tensor) -> Tensor:
    weights = attention.row_weights()[..., None].to(x.dtype)
    centred = x - (weights * x).sum(2, keepdim=True)
    return centred if attention.row_mask is None else centred * attention.row_mask[:, None, :, None]


def _best_method(attention: AttentionMatrix) -> Method:
    if attention.is_causal:
        return "causal"
    if isinstance(attention, LinearMatrix) and attention.phi_k.shape[-1] < attention.shape[2]:
        return "linear"
    return "dense" if attention.shape[2] <= DENSE_UP_TO else "arnoldi"


def _exact(lambda2: Tensor, method: str) -> Spectrum:
    return Spectrum(1 - lambda2.abs(), lambda2, torch.zeros_like(lambda2.real), method)


def _largest(eigenvalues: Tensor) -> Tensor:
    """The one of largest modulus along the last axis, above the real axis."""
    best = eigenvalues.gather(-1, eigenvalues.abs().argmax(-1, keepdim=True))[..., 0]
    return torch.complex(best.real, best.imag.abs())


def _centred_factors(attention: LinearMatrix) -> tuple[Tensor, Tensor]:
    a, phi_k = attention.factors
    return _centre(attention, a), phi_k


def _small_matrix(attention: AttentionMatrix) -> Tensor:
    if not isinstance(attention, LinearMatrix):
        raise ValueError("method='linear' needs a linear attention; use 'arnoldi' or 'dense' for others")
    a, phi_k = attention.factors
    # Phi_k^T (A - 1 m^T) without a second copy of A: its mean m is taken off the small matrix.
    mean = attention.row_weights()[:, :, None] @ a  # (B, H, 1, F)
    if attention.row_mask is not None:
        a = a * attention.row_mask[:, None, :, None]
    return phi_k.mT @ a - phi_k.sum(2)[..., None] * mean  # (B, H, F, F)


def _centred_dense(attention: AttentionMatrix) -> Tensor:
    matrix = _centre(attention, attention.dense().double())
    return matrix if attention.row_mask is None else matrix * attention.row_mask[:, None, None]


def _second_on_the_diagonal(attention: AttentionMatrix) -> Tensor:
    if not attention.is_causal:
        raise ValueError(
            "method='causal' needs a causal attention: only a triangular matrix has its eigenvalues on the diagonal"
        )
    diagonal = attention.diagonal().double()
    if attention.row_mask is not None:
        diagonal = diagonal * attention.row_mask[:, None]
    return diagonal.topk(2, dim=-1).values[..., 1].to(torch.complex128)


def _start_block(attention: AttentionMatrix, generator: torch.Generator | None) -> Tensor:
    """A random centred block (B, H, N, width). Its own generator by default: measuring must not disturb a training run."""
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    batch, heads, length, _ = attention.shape
    width = min(attention.width, length, max(8, length // BLOCKS_IN_LENGTH))
    block = torch.randn(length, width, generator=generator, dtype=attention.dtype).to(attention.device)
    return _centre(attention, block.expand(batch, heads, length, width))
