"""Which precision the inputs of an attention have under autocast."""

import torch
from torch import Tensor


def under_autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As scaled_dot_product_attention does: under autocast q, k and v come in its dtype, float64 excepted.

    Inside, states and normalisers are float32 at least and autocast is off.
    """
    if not isinstance(q, Tensor) or not torch.amp.is_autocast_available(q.device.type):
        return q, k, v
    if not torch.is_autocast_enabled(q.device.type):
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in (q, k, v))  # type: ignore[return-value]
