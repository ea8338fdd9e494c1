"""A pretrained softmax model becomes a linear one: alpha, beta, mean key and mixing from forward passes.

    1. statistics of q and k per layer and head         -> alpha, beta (eq. 10 through the table), w = -beta mean key
    2. squared error against softmax, factor by factor  -> concentration and mixing per head

Each is one pass over the calibration data with the original model running; nothing is trained. Weights of the model are not
touched, so `unload` gives the softmax model back bit for bit.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lln.hf.attach import attach, describe, detach, refuse_unsaved_configs
from lln.hf.branches import branches
from lln.hf.calibration_data import batches_of, run_through
from lln.hf.call import Call
from lln.hf.capture import watching
from lln.hf.fit import FACTORS, MixFit
from lln.hf.modules import attention_modules
from lln.hf.options import ATTENTIONS, LayerShape, LLNOptions, is_converted, options_of
from lln.hf.pooled_statistics import PooledStatistics
from lln.hf.registration import register
from lln.hf.scales import Scales
from lln.matching import match_statistics, shape_for_attention


def convert(
    model: Any,
    attention: str = "lln_diag",
    calibrate: Any = None,
    keep_softmax: Iterable[int] = (),
    *,
    tokenizer: Any = None,
    target: str | None = None,
    block_size: int | None = None,
    subtract_mean_key: bool = True,
    fit: bool = True,
    maps: bool = False,
    per_feature: bool = False,
    max_length: int = 512,
    batch_size: int = 4,
) -> Any:
    """Replace the softmax attention of `model` by LLN attention, in place; returns the model.

    attention: 'lln_diag' or 'lln'.
    calibrate: texts (with `tokenizer`), or batches (a DataLoader, a list of dictionaries or tensors) to measure on. None:
        nothing is measured, each sample is matched when it comes; not for causal models.
    keep_softmax: attention modules, by their number in the model's order (negative ones from the end), to leave as they are.
    target, block_size: as `LLNOptions` has them; None: as model.config.lln has them.
    subtract_mean_key: move the keys so that their mean, measured on the data, is zero.
    fit: fit concentration and mixing per head to softmax's output; False takes them as matched, mixed half and half.
    maps, per_feature: make room for learned maps of q and k, and for alpha and beta per feature.
    """
    if attention not in ATTENTIONS:
        raise ValueError(f"attention must be one of {', '.join(map(repr, ATTENTIONS))}, got {attention!r}")
    if is_converted(model.config):
        raise ValueError("this model is converted already: lln.hf.unload(model) gives its softmax back first")
    modules = attention_modules(model)
    if not modules:
        raise ValueError(f"{type(model).__name__} has no module that goes through transformers' attention interface")
    refuse_unsaved_configs(model)
    kept = _kept(keep_softmax, modules)
    before = options_of(model.config)
    options = LLNOptions(
        attention=attention,
        target=before.target if target is None else target,
        block_size=before.block_size if block_size is None else block_size,
        mix=before.mix,
        subtract_mean_key=subtract_mean_key,
    )
    if calibrate is None:
        return _convert_unmeasured(model, options, modules, kept)

    batches = batches_of(calibrate, model, tokenizer, max_length, batch_size)
    statistics, seen = _measure(model, batches)
    shapes = {
        m: LayerShape(*seen[m], per_feature=per_feature, maps=maps) if m in seen and m not in kept else None
        for m in modules
    }
    if not any(shapes.values()):
        raise ValueError("nothing to convert: every attention module keeps softmax, has a window, or was not called")
    _remember_softmax(model)
    attach(shapes, options.mix)
    for module in modules:
        if getattr(module, "lln", None) is not None:
            module.lln.to(model.device)
            _set_matched(module, statistics[module], options)
    if fit:
        _fit(model, batches, attention == "lln_diag", options)
    describe(model, options)
    model.set_attn_implementation(attention)
    return model


def unload(model: Any) -> Any:
    """Take LLN away again: the model is the softmax model it was, bit for bit. Returns the model."""
    before = getattr(model, "lln_before", None) or "sdpa"
    detach(model)
    if hasattr(model, "lln_before"):
        del model.lln_before
    model.set_attn_implementation(before)
    return model


def _convert_unmeasured(model: Any, options: LLNOptions, modules: list, kept: set) -> Any:
    if any(getattr(m, "is_causal", False) for m in modules):
        raise ValueError(
            "a causal model needs alpha and beta from data, since it may not look at the whole sequence: give calibrate="
        )
    if kept:
        raise ValueError(
            "keep_softmax goes with calibrate=: without data nothing is stored in the model, layer by layer"
        )
    _remember_softmax(model)
    describe(model, options, measured=False)
    model.set_attn_implementation(options.attention)
    return model


def _remember_softmax(model: Any) -> None:
    """What `unload` is to give back: the last implementation that was not one of ours."""
    if model.config._attn_implementation not in register():
        model.lln_before = model.config._attn_implementation


def _kept(keep_softmax: Iterable[int], modules: list) -> set[nn.Module]:
    count = len(modules)
    numbers = [keep_softmax] if isinstance(keep_softmax, int) else list(keep_softmax)
    wrong = [n for n in numbers if not isinstance(n, int) or not -count <= n < count]
    if wrong:
        raise ValueError(f"keep_softmax names {wrong}, but the model has attention modules 0 to {count - 1}")
    return {modules[n] for n in numbers}


def _measure(
    model: Any, batches: list
) -> tuple[dict[nn.Module, PooledStatistics], dict[nn.Module, tuple[int, int, int]]]:
    statistics: dict[nn.Module, PooledStatistics] = {}
    shapes: dict[nn.Module, tuple[int, int, int]] = {}

    def watch(call: Call, _: Tensor) -> None:
        if call.window is None:
            statistics.setdefault(call.module, PooledStatistics()).add(call)
            shapes[call.module] = (call.q.shape[1], call.k.shape[1], call.q.shape[3])

    with watching(model, watch):
        run_through(model, batches)
    return statistics, shapes


def _set_matched(module: Any, pooled: PooledStatistics, options: LLNOptions) -> None:
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


def _fit(model: Any, batches: list, blocks: bool, options: LLNOptions) -> None:
    fits: dict[nn.Module, MixFit] = {}
    without_blocks: set[nn.Module] = set()

    def watch(call: Call, out: Tensor) -> None:
        parameters = getattr(call.module, "lln", None)
        if parameters is None:
            return
        if call.cross:
            without_blocks.add(call.module)
        found = fits.setdefault(call.module, MixFit(FACTORS))
        alpha, beta, bias = parameters.for_attention(torch.float32)
        local = None
        for i, factor in enumerate(FACTORS):
            scales = Scales(alpha * factor, beta * factor, bias * factor, parameters.mix)
            size = options.block_size if blocks and not call.cross and i == 0 else None  # blocks know no factor
            lln, now, _ = branches(call, call.q, call.k, call.v, parameters, scales, size)
            local = now if i == 0 else local
            found.add(i, out.transpose(1, 2), lln, local, _rows(call))

    with watching(model, watch):
        run_through(model, batches)
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


def _rows(call: Call) -> Tensor | None:
    """Which queries count: as the keys do, where they are the same tokens."""
    return None if call.cross or call.q.shape[2] != call.k.shape[2] else call.key_mask
