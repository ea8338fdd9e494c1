"""Softmax attention inside blocks on the compiled kernel."""

from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.blocks.op import OpenOperands, Operands, Results, blocks, open_block
from lln.ops.native.arguments import boundaries, empty_result, run
from lln.ops.native.interface import BlockCall
from lln.ops.native.library import available, supports


def forward(x: Operands) -> Results:
    return _forward(x, one_block=False)


def forward_open(x: OpenOperands) -> Results:
    """Its rows have the bits that `forward` gives them."""
    return _forward(Operands(x.q, x.k, x.v, x.key_mask, None, x.k.shape[2], x.scale, False), one_block=True)


def _forward(x: Operands, one_block: bool) -> Results:
    out = empty_result(x.q, x.v.shape[-1])
    call = block_call(x, one_block)
    call.pass_tensors(out=out)
    run("block_forward", call)
    return Results(out)


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    """From the weights computed again; the output is not needed."""
    grad = grads["out"]
    assert grad is not None
    dq, dk, dv = (empty_result(t, t.shape[-1]) for t in (x.q, x.k, x.v))
    call = block_call(x)
    call.pass_tensors(grad=grad, dq=dq, dk=dk, dv=dv)
    run("block_backward", call)
    return {"q": dq, "k": dk, "v": dv}


def block_call(x: Operands, one_block: bool = False) -> BlockCall:
    """A call on x, its results yet to be passed."""
    block_size = min(x.block_size, x.k.shape[2])
    call = BlockCall(is_causal=x.is_causal, one_block=one_block, block_size=block_size, scale=x.scale)
    call.pass_tensors(q=x.q, k=x.k, v=x.v, key_mask=x.key_mask, cu_seqlens=boundaries(x.cu_seqlens))
    return call


def _refuses(x: Operands | OpenOperands) -> str | None:
    return supports(x.q, x.k, x.v)


blocks.backends.register(Backend("native", forward, backward, _refuses, available, expected_on="cpu"))
open_block.backends.register(Backend("native", forward_open, None, _refuses, available, expected_on="cpu"))
