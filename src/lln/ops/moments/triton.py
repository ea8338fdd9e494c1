"""What matching needs on a GPU, by Triton: sums over positions in two launches, and matching on a sample, with x read once.

Kernels are imported when they are first needed.
"""

from lln.ops.backends import Backend
from lln.ops.gpu import environment
from lln.ops.moments.op import Matched, MatchOperands, Moments, Operands, match, moments


def forward(x: Operands) -> Moments:
    from lln.ops.gpu.moment_sums import forward

    return forward(x)


def forward_match(x: MatchOperands) -> Matched:
    from lln.ops.gpu.sample_matching import forward

    return forward(x)


def _refuses(x: Operands) -> str | None:
    return environment.elsewhere(x.x)


def _refuses_match(x: MatchOperands) -> str | None:
    if x.method != "sample" or x.per != "head" or x.target == "paper":
        return "its kernels match each head by itself on a sample; by the table, plain torch needs no more than sums"
    return environment.refuses(x.q, x.k, x.k)


moments.backends.register(Backend("triton", forward, None, _refuses, environment.unavailable, expected_on="cuda"))
match.backends.register(
    Backend("triton", forward_match, None, _refuses_match, environment.unavailable, expected_on="cuda")
)
