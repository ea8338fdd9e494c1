"""Near exact, far by moments, as an operation, and its backends in the order in which they are tried."""

from lln.ops.near_far import native  # noqa: I001  (registration is the order of preference)
from lln.ops.near_far import triton, plain
from lln.ops.near_far import oracle
from lln.ops.near_far.op import WEIGHTS, Operands, Results, near_far

__all__ = ["WEIGHTS", "Operands", "Results", "native", "near_far", "oracle", "plain", "triton"]
