"""LLN+Diag by the kernels: the blocks mix as they write, and on the way back add to what the LLN branch has left.

Bidirectional LLN is a small product for each row once its state is known, so the blocks' kernel computes it on the spot: q is
read once, and LLN's rows are written only where a backward pass will want them. Causal LLN writes its rows, and the blocks read
them.
"""

import torch
from torch import Tensor

from lln.ops.diag.op import Operands, Results
from lln.ops.gpu import block_attention
from lln.ops.gpu.attention import Call, final_state, on, weighted_backward
from lln.ops.gpu.attention import forward as lln_forward
from lln.ops.gpu.block_attention import Far, Frames
from lln.ops.gpu.tensors import rows, scales, weights
from lln.ops.lln.op import Results as LLNResults
from lln.ops.operation import empty_like_rows, empty_rows


def forward(x: Operands) -> Results:
    nothing, weight, far = x.q.new_empty(0), weights(x.weight), x.lln
    with on(x.q.device):
        if x.is_causal:
            found = lln_forward(far)
            mixed = block_attention.outputs(x.blocks, Frames.of(x.blocks), Far(weight, rows(found.out)), None)
            return Results(mixed, found.out if x.keep_branch else nothing, *found[1:])
        call = Call.of(far)
        state = final_state(call)
        kept = empty_rows(x.q, x.v.shape[-1]) if x.keep_branch else None
        branch = Far(
            weight, None if kept is None else rows(kept), rows(far.q), scales(far.alpha), scales(far.bias), state
        )
        mixed = block_attention.outputs(x.blocks, Frames.of(x.blocks), branch, call.shape)
        return Results(mixed, nothing if kept is None else kept, *state)


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    grad = grads["out"]
    assert grad is not None
    far = LLNResults(results.lln_out, *results.state)
    found = weighted_backward({"out": grad, "summed": None, "normaliser": None}, far, x.lln, wanted, x.weight)
    if x.lln_q is not None:
        found |= {"lln_q": found["q"], "lln_k": found["k"], "q": empty_like_rows(x.q), "k": empty_like_rows(x.k)}
    by_row = x.weight.new_empty(x.q.shape[:3]) if "weight" in wanted else None
    branch = Far(weights(x.weight), rows(results.lln_out))
    block_attention.gradients(grad, x.blocks, found, branch, by_row, add=x.lln_q is None, add_values=True)
    if by_row is not None:
        same = x.weight.shape == by_row.shape
        found["weight"] = by_row if same else torch.sum(by_row, dim=-1, keepdim=True)
    return found
