"""Softmax attention inside a sliding window, for layers that are local by design (ModernBERT's, Mistral's).

    out_i = sum_j softmax_j(scale q_i . k_j) v_j    over the keys j with |i - j| < window, causal: i - window < j <= i

Such a layer is linear in the length already, so it stays what it is. Queries go in blocks of the window's size, each with
the keys of its own and the neighbouring blocks: time and memory O(N window).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.ops.stretches import refuse_stretches


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, window: int, scale: float, key_mask: Tensor | None, is_causal: bool
) -> Tensor:
    """(B, Hq, N, Dv) for q (B, Hq, N, D), k and v (B, Hk, N, D); key_mask (B, N), True where the key counts."""
    refuse_stretches("a layer with a sliding window")
    batch, length = q.shape[0], q.shape[2]
    window = min(window, length)  # all keys are near then: no block need be longer than the text
    if key_mask is None:
        key_mask = torch.ones(batch, length, dtype=torch.bool, device=q.device)
    blocks = -(-length // window)
    missing = blocks * window - length
    after = 0 if is_causal else window
    reach = 2 * window + after  # keys each block of queries looks at
    q_blocks = F.pad(q, (0, 0, 0, missing)).unflatten(2, (blocks, window))  # (B, Hq, blocks, window, D)
    k_blocks, v_blocks = (
        F.pad(x, (0, 0, window, missing + after)).unfold(2, reach, window).transpose(-1, -2) for x in (k, v)
    )  # (B, Hk, blocks, reach, D)
    counts = F.pad(key_mask, (window, missing + after)).unfold(1, reach, window)  # (B, blocks, reach)
    distance = torch.arange(window, device=q.device)[:, None] - (torch.arange(reach, device=q.device) - window)
    near = (distance < window) & (distance >= 0) if is_causal else distance.abs() < window
    allowed = near & counts[:, :, None]  # (B, blocks, window, reach)
    has_key = allowed.any(dim=-1, keepdim=True)
    folded_q, folded_k, folded_v = (x.transpose(1, 2).flatten(0, 1) for x in (q_blocks, k_blocks, v_blocks))
    out = F.scaled_dot_product_attention(
        folded_q,
        folded_k,
        folded_v,
        attn_mask=(allowed | ~has_key).flatten(0, 1)[:, None],
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # (B * blocks, Hq, window, Dv)
    out = torch.where(has_key.flatten(0, 1)[:, None], out, 0.0)
    return out.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :length]
