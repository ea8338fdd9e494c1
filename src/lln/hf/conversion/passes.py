"""The passes of a conversion over its calibration data, with the softmax model running.

1. statistics of q and k per layer and head         -> alpha, beta (eq. 10 through the table), w = -beta mean key
2. squared error against softmax, factor by factor  -> concentration and mixing per head
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from lln.attention import block_diagonal_attention, lln_attention
from lln.conversion.pooled_statistics import PooledStatistics
from lln.hf.attention.call import Call, in_one_row, rows_that_count
from lln.hf.attention.row_weights import row_weights
from lln.hf.conversion.batches import run_through
from lln.hf.conversion.mix_fit import FACTORS, MixFit
from lln.hf.conversion.watching import watching
from lln.hf.options import LLNOptions
from lln.matching import match_statistics, shape_for_attention


def measure_statistics(
    model: Any, batches: list
) -> tuple[dict[nn.Module, PooledStatistics], dict[nn.Module, tuple[int, int, int]]]:
    """Of each attention module without a window: its statistics, and its heads, key heads and head size."""
    statistics: dict[nn.Module, PooledStatistics] = {}
    shapes: dict[nn.Module, tuple[int, int, int]] = {}

    def watch(call: Call, _: Tensor) -> None:
        if call.window is None:
            statistics.setdefault(call.module, PooledStatistics()).add(call)
            shapes[call.module] = (call.q.shape[1], call.k.shape[1], call.q.shape[3])

    with watching(model, watch):
        run_through(model, batches)
    return statistics, shapes


def set_matched(module: Any, pooled: PooledStatistics, options: LLNOptions) -> None:
    """alpha, beta and w of a module, from its statistics."""
    statistics = pooled.result(options.subtract_mean_key)
    matched = match_statistics(statistics, module.lln.shape.head_dim, target=options.target, scale=pooled.scale)
    alpha, beta = shape_for_attention(*matched, module.lln.shape.heads, torch.float32)
    module.lln.set(alpha=alpha[0, :, 0], beta=beta[0, :, 0])
    module.lln.mean_key = statistics.mean_key[0].float() if options.subtract_mean_key else None
    _set_bias(module)


def _set_bias(module: Any) -> None:
    """w = -beta mu, for each query head."""
    if module.lln.mean_key is not None:
        bias = -module.lln.beta * module.lln.mean_key
        module.lln.set(feature_bias=bias.repeat_interleave(module.lln.shape.heads // len(bias), dim=0))


def fit_to_softmax(model: Any, batches: list, blocks: bool, options: LLNOptions) -> None:
    """The factor on alpha and beta, and the mixing, with which each head's output is nearest to softmax's."""
    fits: dict[nn.Module, MixFit] = {}
    without_blocks: set[nn.Module] = set()

    def watch(call: Call, out: Tensor) -> None:
        parameters = getattr(call.module, "lln", None)
        if parameters is None:
            return
        if call.cross:
            without_blocks.add(call.module)
        wanted = out.transpose(1, 2)  # (B, Hq, N, D)
        if call.cu_seqlens is not None:
            call, wanted = call.as_one_row(), in_one_row(wanted)
        found = fits.setdefault(call.module, MixFit(FACTORS, options.mix))
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

    with watching(model, watch):
        run_through(model, batches)
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
        _set_bias(module)
        parameters.fit_error = error
