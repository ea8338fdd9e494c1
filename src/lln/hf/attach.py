"""A converted model gets its parameters while it is built, from config.lln, so plain from_pretrained finds their place.

transformers drops weights it has no place for. Every model class calls `post_init` at the end of its constructor; from
the moment lln.hf is imported, that first attaches what config.lln describes. A model that would not call the attention that
is chosen for it is refused, where transformers would quietly go on with softmax.
"""

from collections.abc import Collection
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from lln.hf.modules import attention_modules
from lln.hf.options import LLNOptions
from lln.hf.parameters import LLNParameters


def attach(model: nn.Module, options: LLNOptions) -> None:
    """Give each attention module its `lln`, or the mark that it keeps softmax; those that have one keep it."""
    modules, layers = attention_modules(model), options.layers or []
    if len(modules) != len(layers):
        raise ValueError(
            f"config.lln describes {len(layers)} attention modules, but {type(model).__name__} has {len(modules)}"
        )
    for module, shape in zip(modules, layers, strict=True):
        if shape is None:
            module.lln_keeps_softmax = True  # type: ignore[assignment]
        elif getattr(module, "lln", None) is None:
            module.lln = LLNParameters(shape, options.mix)


def detach(model: nn.Module) -> None:
    """Take away what `attach` gave."""
    for module in attention_modules(model):
        if getattr(module, "lln", None) is not None:
            del module.lln
        if hasattr(module, "lln_keeps_softmax"):
            del module.lln_keeps_softmax


def install_attachment(names: Collection[str]) -> None:
    """Attach at construction, and take config.lln's attention where the caller asks for none; once. names: our attentions."""
    post_init, choose = PreTrainedModel.post_init, PreTrainedModel.get_correct_attn_implementation
    set_attention = PreTrainedModel.set_attn_implementation
    if getattr(post_init, "attaches_lln", False):
        return

    def attaching_post_init(self: Any) -> None:
        options = _own_options(self)
        if options is not None and options.layers is not None:
            attach(self, options)
        post_init(self)

    def choosing(self: Any, requested_attention: str | None, is_init_check: bool = False) -> str:
        if requested_attention is None:
            options = _own_options(self)
            requested_attention = None if options is None else options.attention
        chosen = choose(self, requested_attention, is_init_check)
        if chosen in names:
            _refuse_without_interface(type(self), chosen)
        return chosen

    def setting(self: Any, attn_implementation: Any, *args: Any, **more: Any) -> None:
        if isinstance(attn_implementation, str) and attn_implementation in names:
            _refuse_without_interface(type(self), attn_implementation)
        set_attention(self, attn_implementation, *args, **more)

    attaching_post_init.attaches_lln = True  # type: ignore[attr-defined]
    PreTrainedModel.post_init = attaching_post_init  # type: ignore[method-assign]
    PreTrainedModel.get_correct_attn_implementation = choosing  # type: ignore[method-assign]
    PreTrainedModel.set_attn_implementation = setting  # type: ignore[method-assign]


def _refuse_without_interface(model: type, attention: str) -> None:
    """transformers reads the source of a model's classes for the call of its attention interface; unreadable is no no."""
    classes = [c for c in model.__mro__ if issubclass(c, PreTrainedModel) and c is not PreTrainedModel]
    for c in classes:
        if c._can_set_attn_implementation() or not hasattr(c, "_can_set_attn_implementation_cached_value"):
            return
    raise ValueError(
        f"{model.__name__} computes its attention itself and does not call transformers' attention interface, so "
        f"attn_implementation={attention!r} would change nothing. Models that call it: BERT, RoBERTa, DistilBERT, ModernBERT, "
        "ViT, DeiT, Llama, Qwen, GPT-2 and most others"
    )


def _own_options(model: Any) -> LLNOptions | None:
    given = getattr(model.config, "lln", None)
    return None if given is None else LLNOptions.from_dict(given)
