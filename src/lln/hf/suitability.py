"""Which models take an attention of ours: those that call transformers' attention interface. The others are refused.

transformers would quietly go on with what the model has. A model that calls the interface in some of its layers only is
taken, and a warning says which stay as they are.
"""

import inspect
import re
import sys
import warnings
from functools import cache
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from lln.hf.modules import attention_modules
from lln.hf.options import ATTENTIONS

_CALL = "ALL_ATTENTION_FUNCTIONS"
_OWN_CHOICE = re.compile(r"_CLASSES\[config\._attn_implementation\]")
_MASK_OF_PAIRS = re.compile(r"mask\w*\[:, [0:], :|self\.indexer\b")
_OWN_ATTENTION = re.compile(r"softmax\(|scaled_dot_product_attention\(|nn\.MultiheadAttention\(")

_said: set[str] = set()


def refuse_unsuitable(model: Any, attention: str) -> None:
    """Refuse a model whose attention, or the attention of a part of it, would not become `attention`."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            refuse_without_interface(type(part), attention)
    refuse_other_attention(model, attention)


def refuse_without_interface(model: type, attention: str) -> None:
    """Refuse a model whose source does not call transformers' attention interface; source that cannot be read passes."""
    classes: list[Any] = [c for c in model.__mro__ if issubclass(c, PreTrainedModel) and c is not PreTrainedModel]
    if not any(_chooses_itself(c) for c in classes):
        for c in classes:
            if c._can_set_attn_implementation() or not hasattr(c, "_can_set_attn_implementation_cached_value"):
                return
    raise ValueError(
        f"{model.__name__} computes its attention itself and does not call transformers' attention interface, so "
        f"attn_implementation={attention!r} would change nothing. Models that call it: BERT, RoBERTa, DistilBERT, ModernBERT, "
        "ViT, DeiT, Llama, Qwen, GPT-2 and most others"
    )


def refuse_other_attention(model: nn.Module, attention: str) -> None:
    """Mamba has no attention at all; Doge's and DeepSeek V3.2's choose keys for each query on a mask of all pairs."""
    kinds: set[Any] = {type(m) for m in model.modules()}
    calling = [kind for kind in kinds if _CALL in _source(kind)]
    if not calling and not attention_modules(model):
        raise ValueError(
            f"nothing in {type(model).__name__} calls transformers' attention interface (a model of convolutions or "
            f"recurrences has no attention at all), so attn_implementation={attention!r} would change nothing: leave it out"
        )
    for kind in calling:
        if _MASK_OF_PAIRS.search(_source(kind)):
            raise ValueError(
                f"{kind.__name__} in {type(model).__name__} chooses keys for each query on a mask of all pairs, which a linear "
                "attention never forms: keep softmax for this one"
            )


def is_part_of_another(model: nn.Module) -> bool:
    """Whether `model` is being built inside the constructor of another model, whose other parts may have attention."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "__init__":
            owner = frame.f_locals.get("self")
            if isinstance(owner, PreTrainedModel) and owner is not model:
                return True
    return False


def say_what_stays(model: nn.Module) -> None:
    """Warn, once, of layers that keep what they have with one of ours chosen."""
    for text in (_windows(model), _own_attention(model)):
        if text is not None and text not in _said:
            _said.add(text)
            warnings.warn(text, stacklevel=4)


def _windows(model: nn.Module) -> str | None:
    found: list[Any] = attention_modules(model)
    modules = [m for m in found if m.config._attn_implementation in ATTENTIONS]
    near = [i for i, m in enumerate(modules) if has_window(m)]
    if not near:
        return None
    left = "no layer becomes linear" if len(near) == len(modules) else "the others become linear"
    return (
        f"attention layers {', '.join(map(str, near))} of {modules[near[0]].config.model_type} have a sliding window: they are "
        f"linear in the length already and keep their softmax; {left}"
    )


def has_window(module: Any) -> bool:
    """Whether this attention sees only near keys, by its config."""
    kinds, at = getattr(module.config, "layer_types", None), getattr(module, "layer_idx", None)
    if kinds and isinstance(at, int) and at < len(kinds):
        return kinds[at] in ("sliding_attention", "hybrid_sliding")
    return getattr(module, "sliding_window", getattr(module.config, "sliding_window", None)) is not None


def _own_attention(model: nn.Module) -> str | None:
    kinds: set[Any] = {type(m) for m in model.modules()}
    names = {kind.__name__ for kind in kinds if _computes_itself(kind)}
    if not names:
        return None
    return (
        f"{', '.join(sorted(names))} in {type(model).__name__} compute attention themselves, without transformers' attention "
        "interface: they stay as they are"
    )


@cache
def _computes_itself(kind: Any) -> bool:
    named = kind.__name__.endswith("Attention") and "Deformable" not in kind.__name__
    return (
        named
        and kind.__module__.startswith("transformers.")
        and _CALL not in _source(kind)
        and bool(_OWN_ATTENTION.search(_source(kind)))
    )


@cache
def _chooses_itself(kind: Any) -> bool:
    """GIT, SAM and others pick a class of their own by the name of the attention, and know no further names."""
    module = sys.modules.get(kind.__module__)
    return module is not None and bool(_OWN_CHOICE.search(_source(module)))


@cache
def _source(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""
