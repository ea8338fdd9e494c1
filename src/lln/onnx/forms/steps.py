"""One token that goes on from a state: LLN+Diag's open block and near-far attention's window. No loop is left in them.

The state's tensors are inputs of the graph and, after the token, its outputs.
"""

import torch

from lln.onnx.forms.attention import attention
from lln.ops.blocks.op import OpenOperands, Results
from lln.ops.diag.step import StepOperands, StepResults
from lln.ops.near_far.rows import softmax
from lln.ops.near_far.step import row as near_far_step

__all__ = ["diag_step", "near_far_step", "open_block"]


def open_block(x: OpenOperands) -> Results:
    dtype = torch.promote_types(x.q.dtype, torch.float32)
    counts = x.key_mask[:, None, :, None]
    q = x.q.to(dtype).unflatten(1, (x.k.shape[1], -1))[:, :, :, None]  # (B, Hk, groups, 1, Nq, D)
    k, v = (torch.where(counts, t, 0.0).to(dtype)[:, :, None] for t in (x.k, x.v))
    near = softmax(q, k, v, x.key_mask[:, None, None], x.scale)
    return Results(near.out[:, :, :, 0].flatten(1, 2).to(x.q.dtype))


def diag_step(x: StepOperands) -> StepResults:
    far = attention(x.lln)
    counts = x.key_mask
    if counts is None:
        counts = torch.ones(x.k.shape[0], 1, dtype=torch.bool, device=x.k.device)
    keys, values, seen, after = x.block.with_token(x.k, x.v, counts)
    near = open_block(OpenOperands(x.q, keys, values, seen, x.scale)).out
    out = torch.lerp(near.to(x.weight.dtype), far.out.to(x.weight.dtype), x.weight[..., None]).to(x.q.dtype)
    return StepResults(out, *far.state, keys, values, after.counts, after.filled, after.started)
