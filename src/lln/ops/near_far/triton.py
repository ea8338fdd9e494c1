"""Near exact, far by moments, on a GPU, by Triton: three launches forward, and six to eight on the way back.

`lln.ops.gpu.near_far_attention` lists them. Kernels are imported when they are first needed.
"""

import torch
from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.gpu import environment
from lln.ops.near_far.op import Operands, Results, near_far

LARGEST_ON_AMD = 64


def forward(x: Operands) -> Results:
    from lln.ops.gpu.near_far_attention import forward

    return forward(x)


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    from lln.ops.gpu.near_far_attention import backward

    return backward(grads, results, x, wanted)


def _refuses(x: Operands) -> str | None:
    return environment.refuses(x.q, x.k, x.v) or _too_large_for_amd(x)


def _too_large_for_amd(x: Operands) -> str | None:
    """Compiled for gfx942, the gradients of larger heads ask for 66 KB of shared memory, of 64."""
    size = max(x.q.shape[-1], x.v.shape[-1])
    if torch.version.hip is None or size <= LARGEST_ON_AMD:
        return None
    return f"on AMD cards its kernels take head sizes up to {LARGEST_ON_AMD}, for want of shared memory, and this is {size}"


near_far.backends.register(Backend("triton", forward, backward, _refuses, environment.unavailable, expected_on="cuda"))
