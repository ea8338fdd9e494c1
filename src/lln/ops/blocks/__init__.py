"""Softmax attention inside blocks as an operation, and its backends in the order in which they are tried."""

from lln.ops.blocks import native, triton, plain  # noqa: I001  (registration is the order of preference)
from lln.ops.blocks import oracle
from lln.ops.blocks.oracle import matrix
from lln.ops.blocks.op import OpenOperands, Operands, blocks, open_block

__all__ = ["OpenOperands", "Operands", "blocks", "matrix", "native", "open_block", "oracle", "plain", "triton"]
