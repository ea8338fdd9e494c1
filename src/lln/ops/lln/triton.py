"""LLN attention on a GPU, by Triton: what is launched, on which workspaces.

    bidirectional   forward: states of stretches, their merger, outputs
                    backward: queries, the gradient of the state, keys, and, if wanted, the sums of dalpha, dbias and dbeta
    causal          forward: states of stretches, states before them, outputs
                    backward: the same two, queries, gradients of the states after each stretch, keys, and the sums
    a decoding step forward: one launch

No value is read back, and the number of launches depends on shapes alone. Kernels are imported when they are first needed.
"""

from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.gpu import environment
from lln.ops.lln.op import Operands, Results, attention


def forward(x: Operands) -> Results:
    from lln.ops.gpu.attention import forward

    return forward(x)


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    from lln.ops.gpu.attention import backward

    return backward(grads, results, x, wanted)


def _refuses(x: Operands) -> str | None:
    return environment.refuses(x.q, x.k, x.v)


TRITON = attention.backends.register(
    Backend("triton", forward, backward, _refuses, environment.unavailable, expected_on="cuda")
)
