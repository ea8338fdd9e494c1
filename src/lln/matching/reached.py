"""A warning, once per process, if matching did not reach softmax's entropy.

It is given on the CPU only, where values can be read without waiting for a device, and outside of compiled graphs and
function transforms. Method "sample" knows the entropy from its search. For the table, checking costs as much as a match, so
only calls 1, 2, 4, 8, ... are checked. If several processes hold a sequence (`lln.parallel`), none is, because all of them
would have to check the same call.
"""

import math
import warnings
from collections.abc import Callable

import numpy
import torch
from torch import Tensor

from lln.ops import stretches

FAR_BITS, FAR_SHARE = 0.5, 0.1  # a difference in entropy is far if it is more than both
_given: set[str] = set()
_calls_of_the_table = 0


def warn_of_search(entropies: Tensor) -> None:
    """For the entropies (S, H, 2) in nats that a search on samples came to."""
    if "sample" in _given or not _can_be_read(entropies):
        return
    far = _farthest(entropies)
    if far is not None:
        _given.add("sample")
        warnings.warn(
            f"matching did not reach softmax's concentration: on a sample of the inputs the mean row entropy of softmax "
            f"attention is {far[0]:.2f} bits and that of LLN attention {far[1]:.2f} "
            "(match_moments(..., return_report=True) gives both for every head)",
            stacklevel=4,
        )


def warn_of_table(alpha: Tensor, measure: Callable[[], Tensor]) -> None:
    """For alpha and beta of the table; `measure` gives the entropies (S, H, 2), in nats."""
    global _calls_of_the_table
    if "table" in _given or not _can_be_read(alpha) or stretches.holders is not None:
        return
    _calls_of_the_table += 1
    if _calls_of_the_table & (_calls_of_the_table - 1):
        return
    far = _farthest(measure())
    if far is not None:
        _given.add("table")
        warnings.warn(
            f"the calibrated table was made for Gaussian queries and keys, and these are not: the mean row entropy of "
            f"softmax attention is {far[0]:.2f} bits and that of LLN attention {far[1]:.2f}; method='sample' matches "
            "inputs of any distribution",
            stacklevel=4,
        )


def _can_be_read(x: Tensor) -> bool:
    return not torch.compiler.is_compiling() and type(x) is Tensor and x.device.type == "cpu" and not _is_transformed(x)


def _is_transformed(x: Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


def _farthest(entropies: Tensor) -> tuple[float, float] | None:
    """Softmax's and LLN's entropy in bits where they differ most, if that is far."""
    if entropies.numel() == 0:
        return None
    # in numpy, whose calls cost a fifth of torch's on so few numbers
    softmax, lln = entropies.detach().numpy().reshape(-1, 2).T / math.log(2)
    excess = numpy.abs(lln - softmax) - numpy.maximum(FAR_SHARE * softmax, FAR_BITS)
    worst = int(numpy.where(numpy.isnan(excess), -1.0, excess).argmax())
    return (float(softmax[worst]), float(lln[worst])) if excess[worst] > 0 else None
