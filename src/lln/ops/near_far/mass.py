"""The sum of n log-normal numbers: how much its logarithm exceeds ln n plus the mean exponent.

Let n exponents be Gaussian of variance x. While x <= 2 ln n the sum is n times its expectation, exp(x / 2). Beyond, the
expectation lives in values that n draws do not contain; the largest draw, about sqrt(2 x ln n), rules the sum. This is the
free energy of the random energy model (Derrida 1981):

    E(x) = x / 2                       if x <= 2 ln n
           sqrt(2 x ln n) - ln n       beyond

E and its derivative are continuous. 2 E'(x) = min(1, sqrt(2 ln n / x)) is by how much the tilt of the mean falls short of
Gaussian theory, so it is the factor of the slope as well.
"""

import torch
from torch import Tensor


def excess(x: Tensor, log_count: Tensor) -> tuple[Tensor, Tensor]:
    """E(x) and 2 E'(x) for log_count = ln n >= 0. One key has no spread: x = 0 where ln n = 0."""
    frozen = x > 2 * log_count
    spread, count = torch.where(frozen, x, 1.0), torch.where(frozen, log_count, 1.0)
    energy = torch.where(frozen, (2 * spread * count).sqrt() - count, x / 2)
    return energy, torch.where(frozen, (2 * count / spread).sqrt(), 1.0)
