"""Softmax attention inside blocks on a GPU, by Triton. Forward is one launch, backward two; none reads a value back.

Kernels are imported when they are first needed.
"""

from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.blocks.op import OpenOperands, Operands, Results, blocks, open_block
from lln.ops.gpu import environment


def forward(x: Operands) -> Results:
    from lln.ops.gpu.block_attention import forward

    return forward(x)


def forward_open(x: OpenOperands) -> Results:
    from lln.ops.gpu.block_attention import forward_open

    return forward_open(x)


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    from lln.ops.gpu.block_attention import backward

    return backward(grads, results, x, wanted)


def _refuses(x: Operands | OpenOperands) -> str | None:
    return environment.refuses(x.q, x.k, x.v)


blocks.backends.register(Backend("triton", forward, backward, _refuses, environment.unavailable, expected_on="cuda"))
open_block.backends.register(
    Backend("triton", forward_open, None, _refuses, environment.unavailable, expected_on="cuda")
)
