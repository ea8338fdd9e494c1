"""The Gaussian inputs of the paper's simulations, and the attentions that are compared on them."""

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor

from lln.instruments import AttentionMatrix, LinearMatrix, LLNMatrix, SoftmaxMatrix
from lln.matching import match_moments


def gaussian(length: int, dim: int, score_variance: float, seed: int) -> tuple[Tensor, Tensor]:
    """q and k (1, 1, N, d) with sigma_q^2 sigma_k^2 = score_variance, float64, the same numbers on every machine."""
    random = numpy.random.default_rng(seed)
    sigma = score_variance**0.25
    q, k = (torch.from_numpy(random.standard_normal((length, dim)) * sigma)[None, None] for _ in range(2))
    return q, k


def softmax(q: Tensor, k: Tensor) -> AttentionMatrix:
    return SoftmaxMatrix(q, k)


def lln_paper(q: Tensor, k: Tensor) -> AttentionMatrix:
    return LLNMatrix(q, k, *match_moments(q, k, target="paper"))


def lln_entropy(q: Tensor, k: Tensor) -> AttentionMatrix:
    return LLNMatrix(q, k, *match_moments(q, k, target="entropy"))


def lln_unmatched(q: Tensor, k: Tensor) -> AttentionMatrix:
    """alpha = beta = 1 up to the few per mille by which the drawn sigmas differ from each other."""
    sigma_q, sigma_k = q.std(), k.std()
    common = ((sigma_q**2 + sigma_k**2) / 2).sqrt()
    return LLNMatrix(q, k, common / sigma_q, common / sigma_k)


def relu(q: Tensor, k: Tensor) -> AttentionMatrix:
    return LinearMatrix(F.relu(q), F.relu(k))


def quadratic(q: Tensor, k: Tensor) -> AttentionMatrix:
    return LinearMatrix(q.square(), k.square())


def elu(q: Tensor, k: Tensor) -> AttentionMatrix:
    return LinearMatrix(F.elu(q) + 1, F.elu(k) + 1)


KERNELS = {
    "softmax": softmax,
    "lln_paper": lln_paper,
    "lln_entropy": lln_entropy,
    "lln_unmatched": lln_unmatched,
    "relu": relu,
    "quadratic": quadratic,
    "elu": elu,
}
