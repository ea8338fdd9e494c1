"""The passes of a conversion over its calibration data, with the softmax model running.

1. statistics of q and k per layer and head         -> alpha, beta (eq. 10 through the table), w = -beta mean key
2. squared error against softmax, factor by factor  -> concentration and mixing per head
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from lln.attention import block_diagonal_attention, lln_attention
from lln.conversion.asked import rows_that_count
from lln.conversion.closed_form import set_bias
from lln.conversion.pooled_statistics import PooledStatistics
from lln.hf.attention.call import Call
from lln.hf.attention.row_weights import row_weights
from lln.hf.conversion.mix_fit import FACTORS, MixFit
from lln.hf.conversion.watching import shown
from lln.hf.options import LLNOptions


def measure_statistics(model: Any, batches: list) -> dict[nn.Module, PooledStatistics]:
    """Of each attention module without a window."""
    statistics: dict[nn.Module, PooledStatistics] = {}
    shown(model, batches)(lambda module, call, _: statistics.setdefault(module, PooledStatistics()).add(call))
    return statistics


def fit_to_softmax(model: Any, batches: list, blocks: bool, options: LLNOptions) -> None:
    """The factor on alpha and beta, and the mixing, with which each head's output is nearest to softmax's."""
    fits: dict[nn.Module, MixFit] = {}
    without_blocks: set[nn.Module] = set()

    def watch(module: nn.Module, call: Call, wanted: Tensor) -> None:
        parameters: Any = getattr(module, "lln", None)
        if parameters is None:
            return
        if call.cross:
            without_blocks.add(module)
        found = fits.setdefault(module, MixFit(FACTORS, options.mix))
        alpha, beta, bias = parameters.for_attention(torch.float32)
        use_blocks = blocks and not call.cross
        share = row_weights(call, 1.0, options.block_size)[0] if use_blocks and options.far_weight else None
        masks: dict[str, Any] = {"key_mask": call.key_mask, "is_causal": call.causal, "cu_seqlens": call.cu_seqlens}
        local = None
        if use_blocks:
            local = block_diagonal_attention(
                call.q, call.k, call.v, block_size=options.block_size, scale=call.scale, **masks
            )
        mapped = (parameters.map_queries(call.q), parameters.map_keys(call.k))
        for i, factor in enumerate(FACTORS):
            lln = lln_attention(*mapped, call.v, alpha * factor, beta * factor, feature_bias=bias * factor, **masks)
            found.add(i, wanted, lln, local, rows_that_count(call), share)

    shown(model, batches)(watch)
    if fits and all(found.saw_nothing for found in fits.values()):
        warnings.warn(
            f"every text to calibrate on fits a block of {options.block_size} tokens, where LLN has no weight: concentration "
            "and mixing stay as they were matched. Calibrate on longer texts, or give a smaller block_size",
            stacklevel=3,
        )
    for module, found in fits.items():
        parameters: Any = module.lln
        factor, mix, error = found.best(parameters.shape.key_heads, mixing=blocks and module not in without_blocks)
        groups = parameters.shape.heads // parameters.shape.key_heads
        parameters.set(
            alpha=parameters.alpha * factor.repeat_interleave(groups)[:, None], beta=parameters.beta * factor[:, None],
            mix=mix,
        )  # fmt: skip
        set_bias(parameters)
        parameters.fit_error = error
