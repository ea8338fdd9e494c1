"""What a model asks of its attention in one call, read once from what transformers hands over, or refused in words.

transformers also hands over what `scaled_dot_product_attention` (`lln.conversion.call`) never sees: caches, windows, packing.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lln.hf.attention.masks import Asked, keys_that_count, packed_boundaries

if TYPE_CHECKING:
    from lln.hf.attention.cache_layer import LLNCacheLayer


# What models hand over to change softmax's scores, which a linear attention never forms.
SCORE_TERMS = {
    "position_bias": "a bias that depends on the positions (T5's)",
    "softcap": "a cap (Gemma 2's; config.attn_logit_softcapping = None takes it away)",
    "s_aux": "a sink beside the keys (gpt-oss's)",
    "indices": "a choice of keys for each query",
    "block_indices": "a choice of blocks for each query",
}


@dataclass(frozen=True)
class Call:
    """One call of attention: q (B, Hq, Nq, D), k (B, Hk, Nk, D), v (B, Hk, Nk, Dv) and everything about them."""

    module: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None  # (B, Nk), True where the key counts
    cu_seqlens: Tensor | None  # boundaries of packed sequences in the flattened batch
    causal: bool
    cross: bool
    scale: float
    dropout: float
    window: int | None
    layer: "LLNCacheLayer | None"  # the state to go on from
    weights_wanted: bool

    def as_one_row(self) -> "Call":
        """Packed sequences of a batch in one row, (1, H, B N, D), where `cu_seqlens` counts; other calls as they are."""
        if self.cu_seqlens is None or self.q.shape[0] == 1:
            return self
        q, k, v = (in_one_row(x) for x in (self.q, self.k, self.v))
        return replace(self, q=q, k=k, v=v)


def in_one_row(x: Tensor) -> Tensor:
    """(B, H, N, D) -> (1, H, B N, D)."""
    return x.transpose(0, 1).flatten(1, 2)[None]


def in_rows(x: Tensor, batch: int) -> Tensor:
    """(1, H, B N, D) -> (B, H, N, D); what has `batch` rows already stays as it is."""
    return x if x.shape[0] == batch else x[0].unflatten(1, (batch, -1)).transpose(0, 1)


def read_call(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: Any,
    scaling: float | None,
    dropout: float,
    options: dict[str, Any],
) -> Call:
    _refuse_score_terms(module, options)
    _refuse_other_patterns(module, options)
    asked: Asked | None = getattr(attention_mask, "lln_asked", None)
    causal = _is_causal(module, options.get("is_causal"), True if asked is None else asked.pattern.causal)
    cross = _is_cross(module, causal, q, k)
    layer = getattr(k, "lln_layer", None)
    key_mask = keys_that_count(attention_mask, module, q.shape[2], k.shape[2], _named_cross(module))
    window = options.get("sliding_window")
    if asked is not None:
        window = _agreed_window(module, asked, window)
        _refuse_other_direction(module, asked, causal, q.shape[2])
    cu_seqlens = None
    if key_mask is None and layer is None and q.shape[2] == k.shape[2]:
        starts = None if asked is None else asked.starts
        cu_seqlens = packed_boundaries(
            options.get("position_ids"), options.get("cu_seq_lens_q"), q.shape[0], q.shape[2], starts
        )
    return Call(
        module, q, k, v, key_mask, cu_seqlens, causal, cross, q.shape[3] ** -0.5 if scaling is None else float(scaling),
        dropout, window, layer, _weights_wanted(module, options),
    )  # fmt: skip


def _agreed_window(module: nn.Module, asked: Asked, given: int | None) -> int | None:
    """The mask's window is what softmax would see. Some models do not tell it to their attention, or tell it another."""
    if given is not None and asked.pattern.window is None:
        raise ValueError(
            f"{type(module).__name__} asks for a sliding window of {given}, but its mask has none: which keys count is not "
            "known here, so this model keeps softmax: attn_implementation='sdpa'"
        )
    return asked.pattern.window


def _refuse_other_direction(module: nn.Module, asked: Asked, causal: bool, queries: int) -> None:
    if queries > 1 and asked.pattern.causal != causal:
        said, masked = ("causal", "is not") if causal else ("bidirectional", "is causal")
        raise ValueError(
            f"{type(module).__name__} says that it is {said}, but its mask {masked}: what it may see is not known here, so "
            "this model keeps softmax: attn_implementation='sdpa'"
        )


def _refuse_score_terms(module: nn.Module, options: dict[str, Any]) -> None:
    for name, what in SCORE_TERMS.items():
        if options.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} gives its attention {name}: {what}. It acts on the scores q.k, which a linear "
                "attention never forms, so leaving it out would be another model: keep softmax for this one"
            )


def _refuse_other_patterns(module: nn.Module, options: dict[str, Any]) -> None:
    """config.layer_types names which keys a layer sees; all of them, or a window that reaches us, can be honoured."""
    kinds, at = getattr(getattr(module, "config", None), "layer_types", None), getattr(module, "layer_idx", None)
    kind = kinds[at] if kinds and isinstance(at, int) and at < len(kinds) else "full_attention"
    windowed = kind in ("sliding_attention", "hybrid_sliding") and options.get("sliding_window") is not None
    if kind not in ("full_attention", "hybrid") and not windowed:
        raise ValueError(
            f"layer {at} of this model has {kind!r} (config.layer_types): its mask leaves out keys in a way that a linear "
            "attention cannot, and seeing them would be another model: keep softmax for this one"
        )


def refuse_growing_cache(call: Call) -> None:
    """A causal call with more keys than queries comes from a cache that keeps all keys."""
    if call.causal and call.layer is None and call.q.shape[2] != call.k.shape[2]:
        raise ValueError(
            f"{call.k.shape[2]} keys for {call.q.shape[2]} queries: a cache that keeps every key (DynamicCache) came with "
            "a causal linear attention, whose past is a state of constant size. Let generate() choose the cache, or pass "
            "past_key_values=lln.hf.LLNCache.of(model), or use_cache=False"
        )


def _is_causal(module: nn.Module, told: bool | None, otherwise: bool) -> bool:
    if told is not None:
        return bool(told)
    if getattr(getattr(module, "config", None), "is_causal", None) is False:
        return False
    return bool(getattr(module, "is_causal", otherwise))


def _is_cross(module: nn.Module, causal: bool, q: Tensor, k: Tensor) -> bool:
    """Whether keys come from another sequence; told by the module, since equal lengths may be a coincidence."""
    return not causal and (_named_cross(module) or q.shape[2] != k.shape[2])


def _named_cross(module: nn.Module) -> bool:
    named = getattr(module, "is_cross_attention", False) or "cross" in type(module).__name__.lower()
    return bool(named or getattr(module, "is_decoder", False))


def _weights_wanted(module: nn.Module, options: dict[str, Any]) -> bool:
    wanted = options.get("output_attentions")
    if wanted is None:
        wanted = getattr(getattr(module, "config", None), "output_attentions", False)
    if wanted or torch.compiler.is_compiling():
        return bool(wanted)
    # Some models (GPT-2) do not hand the flag on, but the one who collects the weights is there to be seen.
    from transformers.utils.output_capturing import _active_collector

    collected = _active_collector.get()
    return collected is not None and any("attentions" in name for name in collected)
