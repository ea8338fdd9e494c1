"""Softmax attention inside blocks on the compiled kernel."""

from typing import Any

from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.blocks.op import OpenOperands, Operands, Results, blocks, open_block
from lln.ops.native.call import available, boundaries, empty_result, run, supports


def forward(x: Operands) -> Results:
    out = empty_result(x.q, x.v.shape[-1])
    run("block_forward", **_fields(x), out=out)
    return Results(out)


def forward_open(x: OpenOperands) -> Results:
    """Its rows have the bits that `forward` gives them."""
    out = empty_result(x.q, x.v.shape[-1])
    run("block_forward", **x._asdict(), one_block=True, block_size=x.k.shape[2], out=out)
    return Results(out)


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    """From the weights computed again; the output is not needed."""
    dq, dk, dv = (empty_result(t, t.shape[-1]) for t in (x.q, x.k, x.v))
    run("block_backward", **_fields(x), grad=grads["out"], dq=dq, dk=dk, dv=dv)
    return {"q": dq, "k": dk, "v": dv}


def _fields(x: Operands) -> dict[str, Any]:
    block_size = min(x.block_size, x.k.shape[2])  # any number of Python's, made to fit one of C's
    return x._asdict() | {"cu_seqlens": boundaries(x.cu_seqlens), "block_size": block_size}


def _refuses(x: Operands | OpenOperands) -> str | None:
    return supports(x.q, x.k, x.v)


blocks.backends.register(Backend("native", forward, backward, _refuses, available, expected_on="cpu"))
open_block.backends.register(Backend("native", forward_open, None, _refuses, available, expected_on="cpu"))
