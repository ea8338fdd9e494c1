"""`lln` and `lln_diag` as attention functions of transformers: (module, q, k, v, mask, ...) -> (B, N, H, D), weights.

LLN is eq. 8 of arXiv 2311.13541, LLN+Diag the mix with softmax inside blocks (Section 4.2). Cross-attention has no blocks,
so `lln_diag` is plain LLN there. Layers with a sliding window, and those a conversion left alone, are softmax.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.attention import lln_diag_attention
from lln.dense import block_diagonal_matrix, lln_matrix
from lln.hf.branches import branches
from lln.hf.call import Call, read_call, refuse_growing_cache
from lln.hf.options import LLNOptions, is_converted, options_of
from lln.hf.parameters import LLNParameters
from lln.hf.scales import Scales, scales_for
from lln.hf.softmax import softmax_attention, softmax_matrix
from lln.hf.window import window_attention
from lln.state import LLNState

Result = tuple[Tensor, Tensor | None]


def lln_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> Result:
    return attend(read_call(module, query, key, value, attention_mask, scaling, dropout, options), blocks=False)


def lln_diag_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> Result:
    return attend(read_call(module, query, key, value, attention_mask, scaling, dropout, options), blocks=True)


def attend(call: Call, blocks: bool) -> Result:
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
    options = options_of(config)
    scales = scales_for(call, options, parameters)
    use_blocks = blocks and not call.cross
    out = _output(call, options, parameters, scales, use_blocks)
    weights = _weights(call, options, parameters, scales, use_blocks) if call.weights_wanted else None
    return out.transpose(1, 2).contiguous(), weights


def _output(call: Call, options: LLNOptions, parameters: LLNParameters | None, scales: Scales, blocks: bool) -> Tensor:
    q, k, v = (_flat(x, call.cu_seqlens) for x in (call.q, call.k, call.v))
    if blocks and (parameters is None or not parameters.shape.maps):
        out, state = _plain_diag(call, options, scales, q, k, v)
        return _finish(out, state, call)
    global_, local, state = branches(call, q, k, v, parameters, scales, options.block_size if blocks else None)
    global_ = _drop(global_, call)
    local = None if local is None else _drop(local, call)
    out = global_ if parameters is None else parameters.mix_branches(global_, local)
    return _finish(out, state, call)


def _plain_diag(
    call: Call, options: LLNOptions, scales: Scales, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, LLNState | None]:
    """Both branches see the same q, k and v: the package's own function, which instruments know."""
    arguments: dict[str, Any] = {
        "mix": scales.mix, "block_size": options.block_size, "scale": call.scale, "feature_bias": scales.feature_bias,
        "key_padding_mask": call.key_mask, "is_causal": call.causal, "cu_seqlens": call.cu_seqlens,
        "branch_transform": (lambda x: _drop(x, call)) if call.dropout > 0 else None,
    }  # fmt: skip
    if call.layer is None:
        return lln_diag_attention(q, k, v, scales.alpha, scales.beta, **arguments), None
    return lln_diag_attention(
        q, k, v, scales.alpha, scales.beta, state=call.layer.state, return_state=True, **arguments
    )


def _finish(out: Tensor, state: LLNState | None, call: Call) -> Tensor:
    if call.layer is not None:
        assert state is not None
        call.layer.keep(state)
    return _unflat(out, call)


def _drop(x: Tensor, call: Call) -> Tensor:
    return F.dropout(x, call.dropout, call.module.training)


def _weights(call: Call, options: LLNOptions, parameters: LLNParameters | None, scales: Scales, blocks: bool) -> Tensor:
    """The N x N matrix, for looking at: O(N^2 D) time and memory."""
    if call.cu_seqlens is not None or call.layer is not None:
        what = "packed sequences" if call.layer is None else "a decoding step"
        raise ValueError(f"output_attentions: the weights of {what} are not one matrix; run the sequences one by one")
    q, k = (call.q, call.k) if parameters is None else (parameters.map_queries(call.q), parameters.map_keys(call.k))
    weights = lln_matrix(
        q, k, scales.alpha, scales.beta,
        feature_bias=scales.feature_bias, key_padding_mask=call.key_mask, is_causal=call.causal,
    )  # fmt: skip
    if not blocks:
        return weights
    local = block_diagonal_matrix(
        call.q, call.k, block_size=options.block_size, scale=call.scale, key_padding_mask=call.key_mask,
        is_causal=call.causal,
    )  # fmt: skip
    mix = torch.as_tensor(scales.mix, dtype=q.dtype, device=q.device).reshape(1, -1, 1, 1)
    return torch.lerp(local, weights, mix)


def _in_window(call: Call) -> Result:
    if call.cross or call.q.shape[2] != call.k.shape[2] or call.layer is not None or call.cu_seqlens is not None:
        raise ValueError(
            f"a layer with a sliding window of {call.window} takes one padded sequence at a time: no cache of earlier "
            "keys, no packed sequences, no cross-attention. Use use_cache=False, or a padded batch"
        )
    assert call.window is not None
    out = window_attention(call.q, call.k, call.v, call.window, call.scale, call.key_mask, call.causal)
    out = _drop(out, call)
    return out.transpose(1, 2).contiguous(), softmax_matrix(call) if call.weights_wanted else None


def _flat(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """(B, H, N, D) as one packed row (1, H, B N, D)."""
    return x if cu_seqlens is None or x.shape[0] == 1 else x.transpose(0, 1).flatten(1, 2)[None]


def _unflat(out: Tensor, call: Call) -> Tensor:
    batch = call.q.shape[0]
    return out if call.cu_seqlens is None or batch == 1 else out[0].unflatten(1, (batch, -1)).transpose(0, 1)
