"""`lln`, `lln_diag` and `lln_near_far` as attention functions of transformers: (module, q, k, v, ...) -> (B, N, H, D), weights.

LLN is eq. 8 of arXiv 2311.13541, LLN+Diag the mix with softmax inside blocks (Section 4.2), near-far is in docs/near-far.md.
Cross-attention has no blocks, so all three are plain LLN there. Layers with a sliding window, and those a conversion left
alone, are softmax.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.attention import lln_attention, lln_diag_attention
from lln.conversion.parameters import LLNParameters
from lln.dense import block_diagonal_matrix, lln_matrix
from lln.hf.attention.cache_layer import LLNCacheLayer
from lln.hf.attention.call import Call, in_rows, read_call, refuse_growing_cache
from lln.hf.attention.near_far import near_far_output, near_far_weights
from lln.hf.attention.row_weights import row_weights
from lln.hf.attention.scales import Scales, scales_for
from lln.hf.attention.softmax import softmax_attention, softmax_matrix
from lln.hf.attention.window import window_attention
from lln.hf.options import ATTENTIONS, NEAR_FAR, LLNOptions, is_converted, options_of
from lln.near_far import NearFarState
from lln.state import LLNState

Result = tuple[Tensor, Tensor | None]


def _forward_of(attention: str) -> Callable[..., Result]:
    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **options: Any,
    ) -> Result:
        return attend(read_call(module, query, key, value, attention_mask, scaling, dropout, options), attention)

    forward.__name__ = forward.__qualname__ = f"{attention}_forward"
    return forward


lln_forward, lln_diag_forward, lln_near_far_forward = (_forward_of(name) for name in ATTENTIONS)


def attend(call: Call, attention: str) -> Result:
    """(B, Nq, Hq, Dv) contiguous, and the weights (B, Hq, Nq, Nk) if the model asked for them."""
    if call.window is not None:
        return _in_window(call)
    if getattr(call.module, "lln_keeps_softmax", False):
        return softmax_attention(call), softmax_matrix(call) if call.weights_wanted else None
    refuse_growing_cache(call)
    config, parameters = getattr(call.module, "config", None), getattr(call.module, "lln", None)
    if parameters is None and is_converted(config):
        raise ValueError(
            f"config.lln describes a converted model, but this {type(call.module).__name__} has no parameters of it: load the "
            "whole model that was converted, with as many layers"
        )
    if parameters is not None and attention != "lln":
        _refuse_other_parameters(parameters, attention)
    options, batch = options_of(config), call.q.shape[0]
    call = call.as_one_row()
    near_far, blocks = (attention == name and not call.cross for name in (NEAR_FAR, "lln_diag"))
    scales = scales_for(call, options, parameters, centred=near_far)
    full = None
    if blocks and options.far_weight:
        assert scales.mix is not None
        weight, full = row_weights(call, scales.mix, options.block_size)
        scales = scales._replace(mix=weight)
    state: LLNState | NearFarState | None
    if near_far:
        out, state = near_far_output(call, options, parameters, scales)
        out = _drop(out, call)
    else:
        out, state = _output(call, options, parameters, scales, blocks)
    if call.layer is not None:
        assert state is not None
        again = partial(_again, call, attention) if call.layer.record_past else None
        call.layer.keep(state, full, call.q.shape[2], again)
    weights = None
    if call.weights_wanted:
        _refuse_weights(call)
        made = (call, options, parameters, scales)
        weights = near_far_weights(*made) if near_far else _weights(*made, blocks)
    return in_rows(out, batch).transpose(1, 2).contiguous(), weights


def _again(call: Call, attention: str, tokens: int, state: Any, full: Tensor | None) -> tuple[Any, Tensor | None]:
    """State and full after the first `tokens` of a call, from those before it."""
    layer = LLNCacheLayer()
    layer.state, layer.full, layer.waiting = state, full, True
    first = {name: getattr(call, name)[:, :, :tokens] for name in ("q", "k", "v")}
    mask = None if call.key_mask is None else call.key_mask[:, :tokens]
    with torch.no_grad():
        attend(replace(call, **first, key_mask=mask, layer=layer, weights_wanted=False), attention)
    return layer.state, layer.full


def _refuse_other_parameters(parameters: LLNParameters, attention: str) -> None:
    if parameters.shape.near_far != (attention == NEAR_FAR):
        had, needs = ("weights", "a mixing") if parameters.shape.near_far else ("a mixing", "weights")
        raise ValueError(
            f"this model was converted with {had} for each head, but {attention} needs {needs}: lln.hf.unload(model), then "
            f"lln.hf.convert(model, {attention!r}, calibrate=texts)"
        )


def _output(
    call: Call, options: LLNOptions, parameters: LLNParameters | None, scales: Scales, blocks: bool
) -> tuple[Tensor, LLNState | None]:
    q, k, v = call.q, call.k, call.v
    arguments: dict[str, Any] = {
        "feature_bias": scales.feature_bias, "key_mask": call.key_mask, "is_causal": call.causal,
        "cu_seqlens": call.cu_seqlens,
    }  # fmt: skip
    if call.layer is not None:
        arguments |= {"state": call.layer.state, "return_state": True}
    maps = parameters is not None and parameters.shape.maps
    mapped = (parameters.map_queries(q), parameters.map_keys(k)) if parameters is not None and maps else (q, k)
    if blocks:
        assert scales.mix is not None
        drops = call.dropout > 0 and call.module.training
        found = lln_diag_attention(
            q, k, v, scales.alpha, scales.beta, mix=scales.mix, block_size=options.block_size, scale=call.scale,
            lln_q=mapped[0] if maps else None, lln_k=mapped[1] if maps else None,
            branch_transform=(lambda x: _drop(x, call)) if drops else None, **arguments,
        )  # fmt: skip
        return found if call.layer is not None else (found, None)
    found = lln_attention(*mapped, v, scales.alpha, scales.beta, **arguments)
    out, state = found if call.layer is not None else (found, None)
    return _drop(out, call), state


def _drop(x: Tensor, call: Call) -> Tensor:
    return F.dropout(x, call.dropout, call.module.training)


def _refuse_weights(call: Call) -> None:
    if call.cu_seqlens is not None or call.layer is not None:
        what = "packed sequences" if call.layer is None else "a decoding step"
        raise ValueError(f"output_attentions: the weights of {what} are not one matrix; run the sequences one by one")


def _weights(call: Call, options: LLNOptions, parameters: LLNParameters | None, scales: Scales, blocks: bool) -> Tensor:
    """The N x N matrix, for looking at: O(N^2 D) time and memory."""
    q, k = (call.q, call.k) if parameters is None else (parameters.map_queries(call.q), parameters.map_keys(call.k))
    weights = lln_matrix(
        q, k, scales.alpha, scales.beta,
        feature_bias=scales.feature_bias, key_mask=call.key_mask, is_causal=call.causal,
    )  # fmt: skip
    if not blocks:
        return weights
    local = block_diagonal_matrix(
        call.q, call.k, block_size=options.block_size, scale=call.scale, key_mask=call.key_mask,
        is_causal=call.causal,
    )  # fmt: skip
    mix = torch.as_tensor(scales.mix, dtype=weights.dtype, device=weights.device)
    return torch.lerp(local, weights, mix[..., None] if mix.dim() == 3 else mix.reshape(1, -1, 1, 1))


def _in_window(call: Call) -> Result:
    """Softmax over the keys in the window, with those before the queries where a cache kept them."""
    if call.cross or call.layer is not None or call.cu_seqlens is not None:
        raise ValueError(
            f"a layer with a sliding window of {call.window} takes one padded sequence at a time: no packed sequences, no "
            "cross-attention, no cache but its own. Pass a padded batch, and let generate() choose the cache or "
            "lln.hf.LLNCache.of(model)"
        )
    assert call.window is not None
    weights = softmax_matrix(call) if call.weights_wanted else None
    if call.q.shape[2] != call.k.shape[2]:
        return softmax_attention(call), weights
    out = window_attention(call.q, call.k, call.v, call.window, call.scale, call.key_mask, call.causal)
    return _drop(out, call).transpose(1, 2).contiguous(), weights
