"""Sums over positions on a GPU, by Triton: two launches, x read once.

Matching itself is plain torch there; docs/gpu.md says why. Kernels are imported when they are first needed.
"""

from lln.ops.backends import Backend
from lln.ops.gpu import environment
from lln.ops.moments.op import Moments, Operands, moments


def forward(x: Operands) -> Moments:
    from lln.ops.gpu.moment_sums import forward

    return forward(x)


def _refuses(x: Operands) -> str | None:
    return environment.elsewhere(x.x)


moments.backends.register(Backend("triton", forward, None, _refuses, environment.unavailable, expected_on="cuda"))
