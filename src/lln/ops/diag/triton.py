"""LLN+Diag on a GPU, by Triton: q is read once for both branches where attention is bidirectional.

    bidirectional   forward: states of stretches, their merger, blocks that compute LLN's rows and mix
                    backward: that of LLN on its share of the gradient, then blocks that add: queries, keys
    causal          forward: LLN as by itself, then blocks that mix
                    backward: as above

Kernels are imported when they are first needed.
"""

from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.diag.op import Operands, Results
from lln.ops.gpu import environment


def forward(x: Operands) -> Results:
    from lln.ops.gpu.diag_attention import forward

    return forward(x)


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    from lln.ops.gpu.diag_attention import backward

    return backward(grads, results, x, wanted)


def _refuses(x: Operands) -> str | None:
    return environment.refuses(*x.lln[:3]) or environment.refuses(*x.blocks[:3])


TRITON = Backend("triton", forward, backward, _refuses, environment.unavailable, expected_on="cuda")
