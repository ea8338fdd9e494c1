"""generate() with a linear attention picks the cache of constant size by itself; what cannot work is refused in words."""

from typing import Any

from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from lln.hf.attention.cache import LLNCache
from lln.hf.options import ATTENTIONS


def choose_cache(model: Any, attention: str, generation_config: Any, model_kwargs: dict[str, Any]) -> None:
    """Put an LLNCache into `model_kwargs` where generate() would make a growing one."""
    given = model_kwargs.get("past_key_values")
    inner = given.self_attention_cache if isinstance(given, EncoderDecoderCache) else given
    if given is None and generation_config.use_cache is False:
        return
    if attention not in ATTENTIONS:
        raise ValueError(f"{attention} keeps no state to generate from: pass use_cache=False")
    if given is not None:
        if not isinstance(inner, LLNCache):
            raise ValueError(
                f"{type(inner).__name__} keeps every key, a linear attention has a state of constant size: leave "
                "past_key_values out, or pass lln.hf.LLNCache.of(model)"
            )
        return
    if generation_config.cache_implementation is not None:
        raise ValueError(
            f"cache_implementation={generation_config.cache_implementation!r} is a cache of keys; a linear attention has "
            "a state of constant size: leave it unset"
        )
    cache: Any = LLNCache.of(model)
    if generation_config.is_assistant:  # what it proposes may be taken back
        cache.activate_past_recording()
    if getattr(model.config, "add_cross_attention", False) or model.config.is_encoder_decoder:
        cache = EncoderDecoderCache(cache, DynamicCache())
    model_kwargs["past_key_values"] = cache
