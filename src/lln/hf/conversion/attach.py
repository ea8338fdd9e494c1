"""A converted model gets its parameters while it is built, from config.lln, so plain from_pretrained finds their place.

transformers drops weights it has no place for. Every model class calls `post_init` at the end of its constructor; from
the moment lln.hf is imported, that first attaches what config.lln describes (`lln.hf.patches`). A model of several (CLIP, an
encoder with a decoder) has a config for each, and each describes the modules that read it. Other torch models have no config:
what a conversion adds to them is in their modules alone (`lln.conversion.installed`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from lln.conversion.parameters import LayerShape, LLNParameters
from lln.hf.modules import attention_modules
from lln.hf.options import LLNOptions


def attach(shapes: Mapping[nn.Module, LayerShape | None], mix: float) -> None:
    """Give each attention module its `lln`, or the mark that it keeps softmax; those that have one keep it."""
    for module, shape in shapes.items():
        if shape is None:
            module.lln_keeps_softmax = True  # type: ignore[assignment]
        elif getattr(module, "lln", None) is None:
            module.lln = LLNParameters(shape, mix)


def detach(model: Any) -> None:
    """Take away what `attach` and `describe` gave."""
    for config, modules in by_config(model):
        for module in modules:
            if getattr(module, "lln", None) is not None:
                del module.lln
            if hasattr(module, "lln_keeps_softmax"):
                del module.lln_keeps_softmax
        if hasattr(config, "lln"):
            del config.lln


def describe(model: Any, options: LLNOptions, *, measured: bool = True) -> None:
    """Write config.lln: `options` and, where parameters were `measured`, what is attached to each module that reads it."""
    for config, modules in by_config(model):
        attached: list[LLNParameters | None] = [getattr(module, "lln", None) for module in modules]
        layers = [None if parameters is None else parameters.shape for parameters in attached]
        config.lln = replace(options, layers=layers if measured else None).to_dict()


def by_config(model: Any) -> list[tuple[Any, list[nn.Module]]]:
    """Every config of the model with the attention modules that read it; the model's own first."""
    found: dict[int, tuple[Any, list[nn.Module]]] = {id(model.config): (model.config, [])}
    for module in attention_modules(model):
        config: Any = module.config
        found.setdefault(id(config), (config, []))[1].append(module)
    return list(found.values())


def refuse_unsaved_configs(model: Any) -> None:
    """Attention that reads a copy of the config would not be found again after saving, since the copy is not saved."""
    saved, waiting = set(), [model.config]
    while waiting:
        config = waiting.pop()
        saved.add(id(config))
        waiting += [sub for name in config.sub_configs if (sub := getattr(config, name, None)) is not None]
    for config, modules in by_config(model):
        if id(config) not in saved:
            raise ValueError(
                f"{type(modules[0]).__name__} reads a copy of {type(model).__name__}'s config, which is not saved with the "
                "model: convert the part that owns the attention by itself"
            )


def _hand_down(model: Any) -> None:
    """Options of the whole are those of its parts too, unless a part has its own."""
    options = options_in(model.config)
    if options is not None:
        for config, _ in by_config(model):
            if getattr(config, "lln", None) is None:
                config.lln = replace(options, layers=None).to_dict()


def attach_described(model: Any) -> None:
    """What the configs of the model describe. A part of a model whose config is shared with other parts waits for the whole."""
    _hand_down(model)
    for config, modules in by_config(model):
        options = options_in(config)
        if options is None or options.layers is None or len(modules) < len(options.layers):
            continue
        if len(modules) > len(options.layers):
            raise ValueError(
                f"config.lln describes {len(options.layers)} attention modules, but {type(model).__name__} has {len(modules)}"
            )
        attach(dict(zip(modules, options.layers, strict=True)), options.mix)


def options_in(config: Any) -> LLNOptions | None:
    given = getattr(config, "lln", None)
    return None if given is None else LLNOptions.from_dict(given)
