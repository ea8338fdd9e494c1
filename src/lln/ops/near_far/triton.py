"""Near exact, far by moments, on a GPU, by Triton: three launches forward, and six to eight on the way back.

`lln.ops.gpu.near_far_attention` lists them. Kernels are imported when they are first needed.
"""

from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.gpu import environment
from lln.ops.near_far.op import Operands, Results, near_far


def forward(x: Operands) -> Results:
    from lln.ops.gpu.near_far_attention import forward

    return forward(x)


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    from lln.ops.gpu.near_far_attention import backward

    return backward(grads, results, x, wanted)


def _refuses(x: Operands) -> str | None:
    return environment.refuses(x.q, x.k, x.v)


near_far.backends.register(Backend("triton", forward, backward, _refuses, environment.unavailable, expected_on="cuda"))
