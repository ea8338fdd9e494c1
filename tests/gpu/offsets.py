"""A kernel that writes down where a tile's elements lie."""

import triton
import triton.language as tl

from lln.ops.gpu.pieces import place


@triton.jit
def offsets(x, found):
    at = place(x, tl.program_id(0), tl.program_id(1), 60_000 + tl.arange(0, 16), tl.arange(0, 16))
    column = tl.arange(0, 16)
    tl.store(found + column[:, None] * 16 + column[None, :], at)
