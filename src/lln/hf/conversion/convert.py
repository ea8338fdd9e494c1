"""A pretrained softmax model becomes a linear one: alpha, beta, mean key and mixing or weights from forward passes.

Two passes over the calibration data (`lln.hf.conversion.passes`, `lln.hf.conversion.near_far`); nothing is trained. Weights
of the model are not touched, so `unload` gives the softmax model back bit for bit.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from lln.conversion.closed_form import set_matched
from lln.conversion.parameters import LayerShape
from lln.hf.conversion import members
from lln.hf.conversion.attach import attach, by_config, describe, detach, refuse_unsaved_configs
from lln.hf.conversion.batches import batches_of
from lln.hf.conversion.near_far import fit_weights
from lln.hf.conversion.passes import fit_to_softmax, measure_statistics
from lln.hf.conversion.ready_made import restore_originals, use_conversion
from lln.hf.modules import Model, attention_modules, named_attention_modules
from lln.hf.options import ATTENTIONS, NEAR_FAR, LLNOptions, is_converted, options_of
from lln.hf.registration import register
from lln.hf.suitability import refuse_unsuitable


def convert(
    model: Model,
    attention: str = "lln_diag",
    calibrate: Any = None,
    keep_softmax: Iterable[int] | str = (),
    *,
    tokenizer: Any = None,
    softmax_layers: int | None = None,
    target: str | None = None,
    block_size: int | None = None,
    far_weight: bool | None = None,
    neighbours: int | None = None,
    first_tokens: int | None = None,
    subtract_mean_key: bool = True,
    fit: bool = True,
    maps: bool = False,
    per_feature: bool = False,
    max_length: int = 512,
    batch_size: int = 4,
    weights: str | Path | None = None,
) -> Model:
    """Replace the softmax attention of `model` by LLN attention, in place; returns the model.

    attention: 'lln_diag', 'lln' or 'lln_near_far', which stays closest to the original; or a member of the zoo without
        weights of its own, such as 'performer', which takes no other argument.
    calibrate: texts (with `tokenizer`) or batches (a DataLoader, or a list of dictionaries or tensors) to measure on. None
        measures nothing and matches each sample at run time; not available for causal models.
    keep_softmax: numbers of attention modules, in model order (negative from the end), that keep softmax. 'auto' selects the
        `softmax_layers` modules (default: one in eight) whose conversion alone harms the output most.
    target, block_size, far_weight, neighbours, first_tokens: as in `LLNOptions`; None takes the values of model.config.lln.
    subtract_mean_key: subtract the mean key, measured on the data.
    fit: fit concentration and mixing (near-far: the weights, by least squares and cross-validation over texts) per head to
        softmax's output; False takes them as matched, mixed half and half (near-far: the neutral weights).
    maps, per_feature: add parameters for learned maps of q and k, and for alpha and beta per feature.
    weights: a file written by `save_conversion` for exactly this model's weights. It holds everything: give nothing else.
    """
    if weights is not None:
        return _convert_by_file(model, weights, calibrate)
    if is_converted(model.config):
        raise ValueError("this model is converted already: lln.hf.unload(model) gives its softmax back first")
    if attention not in ATTENTIONS:
        numbers = {"target": target, "block_size": block_size, "neighbours": neighbours, "first_tokens": first_tokens}
        chosen = {"calibrate": calibrate, "keep_softmax": None if keep_softmax == () else keep_softmax, **numbers}
        members.check(model, attention, {name: x for name, x in chosen.items() if x is not None})
    refuse_unsuitable(model, attention)
    if attention not in ATTENTIONS:
        _remember_softmax(model)
        model.set_attn_implementation(attention)
        return model
    modules = attention_modules(model)
    if not modules:
        raise ValueError(f"{type(model).__name__} has no module that goes through transformers' attention interface")
    refuse_unsaved_configs(model)
    if maps and attention == NEAR_FAR:
        raise ValueError(
            "maps of near-far attention are tied: leave maps out here, and distil(model, data, maps='folded')"
        )
    auto = keep_softmax == "auto"
    if softmax_layers is not None and not auto:
        raise ValueError("softmax_layers is how many layers keep_softmax='auto' keeps: give both, or neither")
    kept = set() if auto else _kept(keep_softmax, modules)
    before = options_of(model.config)
    options = LLNOptions(
        attention=attention,
        target=before.target if target is None else target,
        block_size=before.block_size if block_size is None else block_size,
        mix=before.mix,
        far_weight=before.far_weight if far_weight is None else far_weight,
        neighbours=before.neighbours if neighbours is None else neighbours,
        first_tokens=before.first_tokens if first_tokens is None else first_tokens,
        weights=before.weights,
        subtract_mean_key=subtract_mean_key,
    )
    if calibrate is None:
        _convert_unmeasured(model, options, modules, bool(kept) or auto)
        model.set_attn_implementation(attention)
        return model

    batches = batches_of(calibrate, model, tokenizer, max_length, batch_size)
    statistics = measure_statistics(model, batches)
    shapes = {
        m: LayerShape(*statistics[m].heads, per_feature=per_feature, maps=maps, near_far=attention == NEAR_FAR)
        if m in statistics and m not in kept
        else None
        for m in modules
    }
    if not any(shapes.values()):
        raise ValueError("nothing to convert: every attention module keeps softmax, has a window, or was not called")
    had = [(config, getattr(config, "lln", None)) for config, _ in by_config(model)]
    _remember_softmax(model)
    try:  # from here on the model is put back as it was, whatever goes wrong
        attach(shapes, options.mix)
        for place, module in named_attention_modules(model).items():
            own: Any = getattr(module, "lln", None)
            if own is not None:
                set_matched(own, statistics[module], place, target=options.target, subtract_mean_key=subtract_mean_key)
        if fit and attention == NEAR_FAR:
            fit_weights(model, batches, options)
        elif fit:
            fit_to_softmax(model, batches, attention == "lln_diag", options)
        describe(model, options)
        model.set_attn_implementation(attention)
        if auto:
            _keep_costliest(model, batches, softmax_layers, options)
    except BaseException:
        unload(model)
        for config, given in had:
            if given is not None:
                config.lln = given
        raise
    return model


def _convert_by_file(model: Any, weights: str | Path, calibrate: Any) -> Any:
    if calibrate is not None:
        raise ValueError("weights= holds what calibrate= would measure: give one of them")
    if is_converted(model.config):
        raise ValueError("this model is converted already: lln.hf.unload(model) gives its softmax back first")
    attention = use_conversion(model, weights)
    _remember_softmax(model)
    model.set_attn_implementation(attention)
    return model


def _keep_costliest(model: Any, batches: list, count: int | None, options: LLNOptions) -> None:
    from lln.hf.conversion.costly_layers import keep_costliest  # distillation, of which it is a part, needs conversion

    keep_costliest(model, batches, count)
    describe(model, options)


def unload(model: Model) -> Model:
    """Restore the original softmax model, bit for bit, in place. Returns the model."""
    before = getattr(model, "lln_before", None) or "sdpa"
    detach(model)
    restore_originals(model)
    if hasattr(model, "lln_before"):
        del model.lln_before
    model.set_attn_implementation(before)
    return model


def _convert_unmeasured(model: Any, options: LLNOptions, modules: list, kept: bool) -> None:
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


def _remember_softmax(model: Any) -> None:
    """What `unload` is to give back: the last implementation that was not one of ours."""
    if model.config._attn_implementation not in register():
        model.lln_before = model.config._attn_implementation


def _kept(keep_softmax: Iterable[int] | str, modules: list) -> set[nn.Module]:
    count = len(modules)
    if isinstance(keep_softmax, str):
        raise ValueError(f"keep_softmax must be numbers of attention modules or 'auto', got {keep_softmax!r}")
    numbers = [keep_softmax] if isinstance(keep_softmax, int) else list(keep_softmax)
    wrong = [n for n in numbers if not isinstance(n, int) or not -count <= n < count]
    if wrong:
        raise ValueError(f"keep_softmax names {wrong}, but the model has attention modules 0 to {count - 1}")
    return {modules[n] for n in numbers}
