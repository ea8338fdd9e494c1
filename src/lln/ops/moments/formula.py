"""alpha and beta from given variances (eq. 10): by the calibrated table, or by the paper's line.

    alpha = sigma~ / (sqrt 2 sigma_q),    beta = sigma~ / (sqrt 2 sigma_k)                                   (eq. 10)
    sigma~^2 = alpha^2 sigma_q^2 + beta^2 sigma_k^2 = s                                                      (eq. 26)

With r = s/T and T = scale^2 d sigma_q^2 sigma_k^2, alpha = sqrt(r scale^2 d / 2) sigma_k and beta = sqrt(r scale^2 d / 2)
sigma_q are the same but divide by nothing. The paper takes s = (T - b) / a (eqs. 33 and 34).
"""

import torch
from torch import Tensor

from lln.ops.moments.statistics import Statistics
from lln.ops.moments.table import differentiable_matched_ratio, matched_ratio

DEFAULT_TARGET = "entropy"
PAPER_A = 0.14855178144710912  # the authors' constants of eq. 34
PAPER_B = -0.35487039130661086

_SMALLEST_VARIANCE = 1e-30  # keeps the gradient of the square root finite; a spread this small matches nothing anyway


def match_statistics(
    statistics: Statistics,
    head_dim: int,
    *,
    target: str = DEFAULT_TARGET,
    scale: float | None = None,
    detach: bool = True,
) -> tuple[Tensor, Tensor]:
    """alpha and beta (S, Hk) from given variances, in their dtype; `target` "paper" solves eq. 33 for the sum of eq. 26.

    For "entropy" what the table says is multiplied by the statistics' own factors, if they have any.
    """
    squared_scale = 1.0 / head_dim if scale is None else scale**2
    var_q = statistics.var_q.clamp_min(_SMALLEST_VARIANCE)
    var_k = statistics.var_k.clamp_min(_SMALLEST_VARIANCE)
    t = squared_scale * head_dim * var_q * var_k
    if target == "paper":
        half = ((t - PAPER_B) / PAPER_A / 2).sqrt()
        # a constant tensor has no deviation to divide by, and any alpha gives the same attention
        return half * _inverse_deviation(statistics.var_q), half * _inverse_deviation(statistics.var_k)
    keys = statistics.keys[:, None].expand_as(t)
    ratio = (matched_ratio if detach else differentiable_matched_ratio)(t, keys, target, head_dim)
    common = (ratio * (squared_scale * head_dim / 2)).sqrt()
    alpha, beta = common * var_k.sqrt(), common * var_q.sqrt()
    if statistics.log_factor is not None and target == "entropy":
        of_alpha, of_beta = statistics.log_factor.exp().unbind(-1)
        return alpha * of_alpha, beta * of_beta
    return alpha, beta


def degrees_of_freedom(target: str) -> int:
    """The paper's deviations are sample deviations; with thousands of numbers it hardly matters, but values agree."""
    return 1 if target == "paper" else 0


def _inverse_deviation(variance: Tensor) -> Tensor:
    constant = variance <= _SMALLEST_VARIANCE
    return torch.where(constant, 1.0, torch.where(constant, 1.0, variance).rsqrt())
