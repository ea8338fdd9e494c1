"""Near-far attention for a call of a model: softmax over what is near, moments of the rest (docs/near-far.md).

Maps of q and k are tied here, q' . k' = q . k, so softmax, mean and slope do not see them; LLN and the estimated spread do.
"""

from typing import Any

import torch
from torch import Tensor

from lln.conversion.parameters import LLNParameters
from lln.dense import near_far_matrix
from lln.hf.attention.call import Call
from lln.hf.attention.scales import Scales
from lln.hf.options import LLNOptions
from lln.near_far import NearFarState, near_far_attention


def near_far_output(
    call: Call, options: LLNOptions, parameters: LLNParameters | None, scales: Scales
) -> tuple[Tensor, NearFarState | None]:
    """(B, Hq, N, Dv) and, where the call has a cache, the state to keep."""
    q, k, arguments = _arguments(call, options, parameters, scales)
    if call.layer is None:
        return near_far_attention(q, k, call.v, cu_seqlens=call.cu_seqlens, **arguments), None
    before = call.layer.state
    if before is not None and not isinstance(before, NearFarState):
        raise ValueError(
            "the cache holds the state of another attention than lln_near_far: make a new one, lln.hf.LLNCache.of(model)"
        )
    out, state = near_far_attention(q, k, call.v, state=before, return_state=True, **arguments)
    return out, state


def near_far_weights(call: Call, options: LLNOptions, parameters: LLNParameters | None, scales: Scales) -> Tensor:
    """What multiplies the values, (B, Hq, N, N); of both signs, since the slope is."""
    q, k, arguments = _arguments(call, options, parameters, scales)
    return near_far_matrix(q, k, **arguments)


def _arguments(
    call: Call, options: LLNOptions, parameters: LLNParameters | None, scales: Scales
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    q, k, weights = call.q, call.k, None
    if parameters is not None:
        q, k, weights = parameters.map_queries(q), parameters.map_keys(k), parameters.weights
    elif options.weights is not None:
        weights = torch.tensor(options.weights, device=q.device)
    return q, k, {
        "alpha": scales.alpha, "beta": scales.beta, "feature_bias": scales.feature_bias, "weights": weights,
        "block_size": options.block_size, "neighbours": options.neighbours, "first_tokens": options.first_tokens,
        "scale": call.scale, "key_mask": call.key_mask, "is_causal": call.causal,
    }  # fmt: skip
