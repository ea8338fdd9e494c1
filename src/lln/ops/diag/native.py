"""LLN+Diag on the compiled kernel: the branches mix where the blocks write their rows, and on the way back add up there.

    forward     LLN writes its rows; the blocks read each of them, mix, and write the output: w_i LLN_i + (1 - w_i) Diag_i
    backward    LLN from w_i dout_i, scaled as it is read; then the blocks from (1 - w_i) dout_i, which add to LLN's gradients

No scaled gradient, no block output and no sum of the two is ever held in memory. Where nobody wants LLN's rows by themselves,
they lie where the output is going to be.
"""

import torch
from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.blocks.native import block_call
from lln.ops.diag.op import Operands, Results
from lln.ops.lln.native import forward_into, weighted_backward
from lln.ops.lln.op import Results as LLNResults
from lln.ops.native.arguments import empty_result, run
from lln.ops.native.library import available, supports


def forward(x: Operands) -> Results:
    out = empty_result(x.q, x.v.shape[-1])
    far = forward_into(empty_result(x.q, x.v.shape[-1]) if x.keep_branch else out, x.lln)
    call = block_call(x.blocks)
    call.pass_tensors(out=out, far=far.out, weight=x.weight)
    run("block_forward", call)
    return Results(out, far.out if x.keep_branch else x.q.new_empty(0), *far[1:])


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    grad = grads["out"]
    assert grad is not None
    far = LLNResults(results.lln_out, *results.state)
    asked = {"q", "k", "v"} | (wanted & {"alpha", "beta", "bias"})
    found = weighted_backward({"out": grad, "summed": None, "normaliser": None}, far, x.lln, asked, x.weight)
    call = block_call(x.blocks)
    call.add_to_dv = True
    if x.lln_q is None:
        call.add_to_dq_dk = True
    else:
        found |= {"lln_q": found["q"], "lln_k": found["k"]}
        found |= {n: empty_result(t, t.shape[-1]) for n, t in (("q", x.q), ("k", x.k))}
    call.pass_tensors(grad=grad, weight=x.weight, dq=found["q"], dk=found["k"], dv=found["v"])
    if "weight" in wanted:
        by_row = torch.empty(x.q.shape[:3], dtype=torch.float32)
        call.pass_tensors(far=results.lln_out, dweight=by_row)
    run("block_backward", call)
    if "weight" in wanted:
        found["weight"] = by_row if x.weight.shape == by_row.shape else by_row.sum(dim=-1, keepdim=True)
    return found


def _refuses(x: Operands) -> str | None:
    return supports(*x.lln[:3]) or supports(*x.blocks[:3])


NATIVE = Backend("native", forward, backward, _refuses, available, expected_on="cpu")
