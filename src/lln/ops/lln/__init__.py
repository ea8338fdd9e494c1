"""LLN attention as an operation, and its backends in the order in which they are tried."""

from lln.ops.lln import native, triton, chunked  # noqa: I001  (registration is the order of preference)
from lln.ops.lln import oracle
from lln.ops.lln.oracle import matrix
from lln.ops.lln.op import Operands, Results, State, attention, compute_dtype

__all__ = [
    "Operands",
    "Results",
    "State",
    "attention",
    "chunked",
    "compute_dtype",
    "matrix",
    "native",
    "oracle",
    "triton",
]
