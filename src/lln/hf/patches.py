"""Everything of transformers that lln.hf wraps, in one table: what, with which signature, and why.

Attention and mask functions go through transformers' own registers (`lln.hf.registration`). What those do not reach is wrapped
here and nowhere else: each row calls the original and adds what it says. A version of transformers that lacks a row's
attribute is refused before anything is changed; a test holds every signature to the one recorded here.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import transformers
from packaging.version import Version
from transformers import PreTrainedConfig, PreTrainedModel, masking_utils
from transformers.generation.utils import GenerationMixin

from lln.conversion.parameters import LLNParameters
from lln.hf.attention.generation import choose_cache
from lln.hf.attention.mask_patterns import DESCRIPTIONS
from lln.hf.conversion.attach import attach_described, options_in
from lln.hf.conversion.saved_attention import KEY, known_name, name_attention, tell_if_overruled
from lln.hf.suitability import (
    is_part_of_another,
    refuse_other_attention,
    refuse_unsuitable,
    refuse_without_interface,
    say_what_stays,
)

TRIED = ("5.18.0", "5.20.2", "5.21.1", "5.22.2")
FIRST_UNTRIED = "5.23"  # the bound in the metadata of lln-attention[hf]

Function = Callable[..., Any]
Names = Collection[str]  # of our attentions


class Patch(NamedTuple):
    owner: Any  # a class or a module of transformers
    name: str
    signature: str  # of the original, without annotations
    why: str
    around: Callable[[Function, Names], Function]  # the original -> what stands in its place


def describing(name: str) -> Callable[[Function, Names], Function]:
    def around(make: Function, _: Names) -> Function:
        def made(*args: Any, **named: Any) -> Function:
            function: Any = make(*args, **named)
            function.lln_description = DESCRIPTIONS[name](*args, **named)
            return function

        return made

    return around


def attaching(post_init: Function, names: Names) -> Function:
    def replacement(self: Any) -> None:
        attach_described(self)
        post_init(self)
        if self.config._attn_implementation in names and not is_part_of_another(self):
            refuse_other_attention(self, self.config._attn_implementation)
            say_what_stays(self)

    return replacement


def resetting(initialize: Function, _: Names) -> Function:
    def replacement(self: Any, module: Any, *args: Any, **more: Any) -> None:
        if isinstance(module, LLNParameters) and not getattr(module, "_is_hf_initialized", False):
            loaded = {name for name, x in module.named_parameters() if getattr(x, "_is_hf_initialized", False)}
            module.reset_parameters(keep=loaded)
            module.trainable(False)  # loading thaws whatever it loads
        initialize(self, module, *args, **more)

    return replacement


def choosing(choose: Function, names: Names) -> Function:
    def replacement(self: Any, requested_attention: str | None, is_init_check: bool = False) -> str:
        requested_attention = known_name(requested_attention)  # of a config that was read before lln.hf was imported
        if requested_attention is None:
            options = options_in(self.config)
            requested_attention = None if options is None else options.attention
        chosen: str = choose(self, requested_attention, is_init_check)
        if chosen in names:
            refuse_without_interface(type(self), chosen)
        return chosen

    return replacement


def setting(set_attention: Function, names: Names) -> Function:
    def replacement(self: Any, attn_implementation: Any, *args: Any, **more: Any) -> None:
        asked: Any = attn_implementation.get("") if isinstance(attn_implementation, dict) else attn_implementation
        if isinstance(attn_implementation, str) and asked in names:
            refuse_unsuitable(self, asked)
        elif asked in names:
            refuse_without_interface(type(self), asked)
        set_attention(self, attn_implementation, *args, **more)
        if asked in names:
            say_what_stays(self)

    return replacement


def naming(to_dict: Function, names: Names) -> Function:
    def replacement(self: Any) -> dict[str, Any]:
        return name_attention(self, to_dict(self), names)

    return replacement


def reading(from_dict: Function, names: Names) -> Function:
    def replacement(cls: Any, config_dict: dict[str, Any], **asked: Any) -> Any:
        if asked.get(KEY) is None:
            asked.pop(KEY, None)
            return from_dict(cls, config_dict, **asked)
        wanted = asked[KEY]
        tell_if_overruled(config_dict, wanted, names)
        found = from_dict(cls, config_dict, **asked)
        config = found[0] if isinstance(found, tuple) else found
        config._attn_implementation = wanted  # parts that were built after the whole would keep their saved one
        return found

    return replacement


def knowing(set_choice: Function, names: Names) -> Function:
    def replacement(self: Any, value: Any) -> None:
        if value is None and getattr(self, "_attn_implementation_internal", None) in names:
            return  # from_pretrained(..., attn_implementation=None) asks for nothing
        set_choice(self, known_name(value))

    return replacement


def caching(prepare: Function, names: Names) -> Function:
    def replacement(
        self: Any, generation_config: Any, model_kwargs: Any, generation_mode: Any, *args: Any, **more: Any
    ) -> Any:
        attention = self.config.get_text_config(decoder=True)._attn_implementation
        if attention in names:
            choose_cache(self, attention, generation_config, model_kwargs)
        return prepare(self, generation_config, model_kwargs, generation_mode, *args, **more)

    return replacement


_MASKS = "a mask is a closure that cannot be looked into: what it is made of is written on it as it is made"
PATCHES = (
    Patch(masking_utils, "and_masks", "(*mask_functions)", _MASKS, describing("and_masks")),
    Patch(
        masking_utils, "sliding_window_overlay", "(sliding_window)", _MASKS, describing("sliding_window_overlay")
    ),
    Patch(
        masking_utils, "sliding_window_bidirectional_overlay", "(sliding_window)", _MASKS,
        describing("sliding_window_bidirectional_overlay"),
    ),
    Patch(
        masking_utils, "packed_sequence_mask_function", "(packed_sequence_mask)", _MASKS,
        describing("packed_sequence_mask_function"),
    ),
    Patch(
        GenerationMixin, "_prepare_cache_for_generation",
        "(self, generation_config, model_kwargs, generation_mode, batch_size, max_cache_length)",
        "generate() would make a cache that grows: it gets one of constant size, or is refused in words", caching,
    ),
    Patch(
        PreTrainedModel, "post_init", "(self)",
        "weights without a place are dropped in loading: what config.lln describes is attached in building", attaching,
    ),
    Patch(
        PreTrainedModel, "_initialize_weights", "(self, module, is_custom_code=False)",
        "parameters that a folder lacks would be whatever the memory held: they start as in a new model, frozen", resetting,
    ),
    Patch(
        PreTrainedModel, "get_correct_attn_implementation", "(self, requested_attention, is_init_check=False)",
        "where the caller names none, a converted model has its own; a model that would ignore it is refused", choosing,
    ),
    Patch(
        PreTrainedModel, "set_attn_implementation", "(self, attn_implementation, allow_all_kernels=False)",
        "a model that computes its attention itself would quietly go on with softmax: it is refused", setting,
    ),
    Patch(
        PreTrainedConfig, "to_dict", "(self)",
        "attn_implementation is never written: ours is, by a name that stops those who have not imported lln.hf", naming,
    ),
    Patch(
        PreTrainedConfig, "from_dict", "(cls, config_dict, **kwargs)",
        "what the caller asks for comes before what was saved, in every part, and is told if it is another attention", reading,
    ),
    Patch(
        PreTrainedConfig, "_attn_implementation", "(self, value)",
        "the saved name is read as the attention's own, and None asks for nothing", knowing,
    ),
)  # fmt: skip


def install(names: Names) -> None:
    """Put every patch in place, once; `names` are our attentions."""
    warn_of_untried(transformers.__version__)
    refuse_missing(PATCHES)
    for patch in PATCHES:
        given = inspect.getattr_static(patch.owner, patch.name)
        original = bare(given)
        if getattr(original, "lln_patch", False):
            continue
        replacement: Any = functools.update_wrapper(patch.around(original, names), original)
        replacement.lln_patch = True
        setattr(patch.owner, patch.name, _dressed(given, replacement))


def bare(attribute: Any) -> Any:
    """The function itself: of a class method, or that sets a property."""
    if isinstance(attribute, property):
        return attribute.fset
    return getattr(attribute, "__func__", attribute)


def _dressed(attribute: Any, function: Function) -> Any:
    """The function in place of `attribute`'s, as a thing of the same kind."""
    if isinstance(attribute, property):
        return property(attribute.fget, function)
    return classmethod(function) if isinstance(attribute, classmethod) else function


def refuse_missing(patches: Collection[Patch]) -> None:
    found = {f"{p.owner.__name__}.{p.name}": inspect.getattr_static(p.owner, p.name, None) for p in patches}
    missing = [name for name, attribute in found.items() if not callable(bare(attribute))]
    if missing:
        raise ImportError(
            f"transformers {transformers.__version__} has no function {', '.join(missing)}, which lln.hf wraps; it was tried "
            f"with {', '.join(TRIED)}: pip install 'transformers<{FIRST_UNTRIED}'"
        )


def warn_of_untried(version: str) -> None:
    if Version(version) >= Version(FIRST_UNTRIED):
        warnings.warn(
            f"transformers {version} is newer than what lln.hf was tried with ({', '.join(TRIED)}). lln.hf wraps some of its "
            f"inner functions, which may have changed: pip install 'transformers<{FIRST_UNTRIED}' if a model misbehaves",
            stacklevel=2,
        )
