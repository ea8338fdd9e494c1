"""The truth: softmax attention inside blocks in float64, with the whole N x N matrix."""

import torch
from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.blocks.op import OpenOperands, Operands, Results, blocks, open_block
from lln.ops.masks import allowed_pairs, block_of_positions, masked_softmax, weighted


def forward(x: Operands) -> Results:
    values = x.v.double().repeat_interleave(x.q.shape[1] // x.k.shape[1], dim=1)
    return Results(weighted(matrix(x), values, x.key_mask).to(x.q.dtype))


def matrix(x: Operands) -> Tensor:
    """P_ij ∝ exp(scale q_i . k_j) inside a block, (B, Hq, N, N) in float64; a row without keys is all zeros."""
    keys = x.k.double()
    if x.key_mask is not None:  # autograd carries NaN through a product with zero, so masked keys must not hold any
        keys = torch.where(x.key_mask[:, None, :, None], keys, 0.0)
    scores = x.q.double() @ keys.repeat_interleave(x.q.shape[1] // x.k.shape[1], dim=1).mT * x.scale
    block = block_of_positions(x.k.shape[2], x.block_size, x.key_mask, x.cu_seqlens, x.k.device)
    allowed = allowed_pairs(scores, x.key_mask, None, x.is_causal)
    return masked_softmax(scores, allowed & (block[:, None, :, None] == block[:, None, None, :]))


def forward_open(x: OpenOperands) -> Results:
    groups = x.q.shape[1] // x.k.shape[1]
    keys, values = (t.double().repeat_interleave(groups, dim=1) for t in (x.k, x.v))
    scores = x.q.double() @ keys.mT * x.scale
    weights = masked_softmax(scores, allowed_pairs(scores, x.key_mask))
    return Results(weighted(weights, values, x.key_mask).to(x.q.dtype))


ORACLE = blocks.backends.register(Backend("oracle", forward, automatic=False, transparent=True, by_autograd=True))
open_block.backends.register(Backend("oracle", forward_open, automatic=False, transparent=True, by_autograd=True))
