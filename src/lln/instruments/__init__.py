"""Instruments: temperature, entropy, spectral gap, log-normality and bias of any attention, at any length, on live models.

An attention is given as its matrix (a tensor), as what it is made of (`SoftmaxMatrix`, `LLNMatrix`, ...), or as a
function of values. Results have one number per sample and head, (B, H), in float64.
"""

from lln.instruments.attention import AttentionMatrix
from lln.instruments.bias import Bias, bias
from lln.instruments.diagonal import BlockDiagonalMatrix, MixtureMatrix
from lln.instruments.entropy import Estimate, collision_entropy, entropy, sampled_entropy, variance
from lln.instruments.given import DenseMatrix, FunctionMatrix
from lln.instruments.linear import LinearMatrix, LLNMatrix
from lln.instruments.lognormality import LogNormality, lognormality
from lln.instruments.softmax import SoftmaxMatrix
from lln.instruments.spectrum import Spectrum, spectral_gap, top_singular_value
from lln.instruments.temperature import lln_temperature, score_variance, temperature

__all__ = [
    "AttentionMatrix",
    "Bias",
    "BlockDiagonalMatrix",
    "DenseMatrix",
    "Estimate",
    "FunctionMatrix",
    "LLNMatrix",
    "LinearMatrix",
    "LogNormality",
    "MixtureMatrix",
    "SoftmaxMatrix",
    "Spectrum",
    "bias",
    "collision_entropy",
    "entropy",
    "lln_temperature",
    "lognormality",
    "sampled_entropy",
    "score_variance",
    "spectral_gap",
    "temperature",
    "top_singular_value",
    "variance",
]
