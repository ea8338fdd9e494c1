"""Temperature: how sharply an attention's inputs make it attend.

    tau_sm  = 1 / sqrt(var(a)),   a = q . k / sqrt(d)                          (eq. 5)
    var(a)  = sigma_q^2 sigma_k^2                                              cross="none"
            = sigma_q^2 sigma_k^2 + C_cross                                    cross="goodman"
            = mean_i var_j(a_ij) = tr(S_q C_k) / d                             cross="full"
    tau_lln = 1 / sqrt(a (alpha^2 sigma_q^2 + beta^2 sigma_k^2) + b)           (eq. 11)

C_cross is Goodman's correction for one product x y of a query's and a key's component, over all pairs (i, j) and features l:
Var(xy) - Var(x) Var(y), with Var(xy) = E[x^2 y^2] - E[xy]^2. For centred inputs this is the paper's
Cov(x^2, y^2) - Cov(x, y)^2; the second form also holds where the mean is not zero.

"full" departs from the paper: with S_q the second moments of the queries and C_k the covariance of the keys it is the exact
variance of the scores inside rows, which is what softmax sees: it counts correlated features and ignores the mean key.
All three cost O(N d) or O(N d^2), never N^2.
"""

from typing import Literal

import torch
from torch import Tensor

from lln.instruments.checks import check_key_mask, check_queries_and_keys
from lln.matching import PAPER_A, PAPER_B

Cross = Literal["none", "goodman", "full"]


def score_variance(
    q: Tensor,
    k: Tensor,
    *,
    cross: Cross = "goodman",
    scale: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """sigma_sm^2 for each sample and query head, (B, Hq), float64."""
    q, k, weight_q, weight_k = _prepare(q, k, key_mask)
    dim = q.shape[-1]
    scale = dim**-0.5 if scale is None else scale
    if cross == "none":
        variance = _variance(q, weight_q) * _variance(k, weight_k)
    elif cross == "goodman":
        square_q, square_k = (
            (weight_q * q.square()).sum(2),
            (weight_k * k.square()).sum(2),
        )  # (B, H, D), E over positions
        mean_q, mean_k = (weight_q * q).sum(2), (weight_k * k).sum(2)
        variance = (square_q * square_k).mean(-1) - (mean_q * mean_k).mean(-1).square()
    elif cross == "full":
        second_q = q.mT @ (weight_q * q)  # (B, H, D, D)
        centred_k = k - (weight_k * k).sum(2, keepdim=True)
        variance = (second_q * (centred_k.mT @ (weight_k * centred_k))).sum((-2, -1)) / dim
    else:
        raise ValueError(f"cross must be 'none', 'goodman' or 'full', not {cross!r}")
    return variance * (scale**2 * dim)


def temperature(
    q: Tensor,
    k: Tensor,
    *,
    cross: Cross = "goodman",
    scale: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """tau_sm of eq. 5 for each sample and query head, (B, Hq); infinite where the scores do not vary."""
    return score_variance(q, k, cross=cross, scale=scale, key_mask=key_mask).clamp(min=0).rsqrt()


def lln_temperature(
    q: Tensor,
    k: Tensor,
    alpha: Tensor | float,
    beta: Tensor | float,
    *,
    a: float = PAPER_A,
    b: float = PAPER_B,
    key_mask: Tensor | None = None,
) -> Tensor:
    """tau_lln of eq. 11, (B, Hq). alpha and beta broadcast to (B, H, 1, D), as in the attention itself.

    With the authors' constants the line is negative below 2.39; there the temperature is infinite.
    """
    q, k, weight_q, weight_k = _prepare(q, k, key_mask)
    alpha, beta = (torch.as_tensor(x, dtype=torch.float64, device=q.device) for x in (alpha, beta))
    if beta.dim() == 4 and beta.shape[1] not in (1, q.shape[1]):
        beta = beta.repeat_interleave(q.shape[1] // beta.shape[1], dim=1)
    spread = _variance(alpha * q, weight_q) + _variance(beta * k, weight_k)
    return (a * spread + b).clamp(min=0).rsqrt()


def _prepare(q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """float64 q and k with as many heads each, and the weight of each position, (B, 1, N, 1), summing to one."""
    check_queries_and_keys(q, k)
    check_key_mask(mask, k.shape[0], k.shape[2])
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    weight_k = _weights(mask, k)
    weight_q = weight_k if q.shape[2] == k.shape[2] else _weights(None, q)
    return q.detach().double(), k.detach().double(), weight_q, weight_k


def _weights(mask: Tensor | None, x: Tensor) -> Tensor:
    counted = torch.ones(x.shape[0], x.shape[2], device=x.device) if mask is None else mask
    counted = counted.double()
    return (counted / counted.sum(-1, keepdim=True))[:, None, :, None]


def _variance(x: Tensor, weight: Tensor) -> Tensor:
    """Variance over positions and features together, (B, H): one sigma per head, as the model of section 3 has it."""
    mean = (weight * x).sum(2).mean(-1)
    return (weight * (x - mean[..., None, None]).square()).sum(2).mean(-1)
