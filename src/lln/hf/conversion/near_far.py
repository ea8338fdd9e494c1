"""Converting to near-far attention: the four weights of each head in closed form, in one pass with softmax running.

Each text of the calibration data is a fold of the cross-validation that chooses what a head uses (`lln.near_far.fit`); packed
texts of a batch are one fold together.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from lln.hf.attention.call import Call, in_one_row, rows_that_count
from lln.hf.conversion.batches import run_through
from lln.hf.conversion.watching import watching
from lln.hf.options import LLNOptions
from lln.near_far.fit import NearFarFit, near_far_parts


def fit_weights(model: Any, batches: list, options: LLNOptions) -> None:
    """Sets `weights` and `fit_error` of every attention module that has parameters; cross-attention has no near keys."""
    fits = normal_equations(model, batches, options)
    if fits and not any(bool(fit.sums.gram.any()) for fit in fits.values()):
        warnings.warn(
            "in every text to calibrate on all keys are near, where the weights have no say: they stay neutral. Calibrate on "
            "longer texts, or give a smaller block_size",
            stacklevel=3,
        )
    for module, fit in fits.items():
        parameters: Any = module.lln
        found = fit.best()
        parameters.set(weights=found)
        parameters.fit_error = fit.error(found)


def normal_equations(model: Any, batches: list, options: LLNOptions) -> dict[nn.Module, NearFarFit]:
    """Of each attention module that has parameters, with its alpha, beta and feature bias as they are."""
    fits: dict[nn.Module, NearFarFit] = {}

    def watch(call: Call, out: Tensor) -> None:
        parameters = getattr(call.module, "lln", None)
        if parameters is None or call.cross:
            return
        wanted = out.transpose(1, 2)  # (B, Hq, N, Dv)
        if call.cu_seqlens is not None:
            call, wanted = call.as_one_row(), in_one_row(wanted)
        alpha, beta, bias = parameters.for_attention(torch.float32)
        parts = near_far_parts(
            call.q, call.k, call.v, alpha, beta, feature_bias=bias, block_size=options.block_size,
            neighbours=options.neighbours, first_tokens=options.first_tokens, scale=call.scale, key_mask=call.key_mask,
            is_causal=call.causal, cu_seqlens=call.cu_seqlens,
        )  # fmt: skip
        fits.setdefault(call.module, NearFarFit()).add(wanted, *parts, rows_that_count(call))

    with watching(model, watch):
        run_through(model, batches)
    return fits
