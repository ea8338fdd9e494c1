"""What the kernels are made of: reading tiles, references that are finite, products, running maxima."""

import triton
import triton.language as tl

from lln.ops.gpu.environment import interpreted

# The interpreter's bfloat16 products are wrong by far, so there their operands become float32 first.
INTERPRETED = tl.constexpr(interpreted())


@triton.jit
def place(x, batch, head, row, column):
    """Addresses of a tile (rows, columns) of x (B, H, N, D), in 64 bits: a tensor may have more than 2^31 elements."""
    first = x.data + batch.to(tl.int64) * x.batch + head.to(tl.int64) * x.head
    return first + row.to(tl.int64)[:, None] * x.row + column.to(tl.int64)[None, :] * x.column


@triton.jit
def read(x, batch, head, row, column, there):
    """A tile of x as it is, zeros where it is not `there`: nothing outside is touched."""
    return tl.load(place(x, batch, head, row, column), mask=there, other=0.0)


@triton.jit
def share(weight, batch, head, row, there, NEAR: tl.constexpr):
    """w_i of LLN+Diag for each row, or 1 - w_i, which is the blocks' share."""
    at = (
        weight.data
        + batch.to(tl.int64) * weight.batch
        + head.to(tl.int64) * weight.head
        + row.to(tl.int64) * weight.row
    )
    found = tl.load(at, mask=there, other=0.0)
    if NEAR:
        found = 1.0 - found
    return found


@triton.jit
def read_gradient(grad, weight, batch, head, row, e, there, inside, NEAR: tl.constexpr):
    """A tile of the output's gradient, or of a branch's share of it where the branches of LLN+Diag are weighed."""
    found = read(grad, batch, head, row, e, inside)
    if weight is not None:
        found = found.to(tl.float32) * share(weight, batch, head, row, there, NEAR)[:, None]
    return found


@triton.jit
def scale(x, sequence, head, column, columns):
    """alpha, beta or bias of a head, zeros beyond its columns; zeros if there is none."""
    if x is None:
        return tl.zeros_like(column.to(tl.float32))
    else:
        at = x.data + sequence.to(tl.int64) * x.sequence + head.to(tl.int64) * x.head + column.to(tl.int64) * x.column
        return tl.load(at, mask=column < columns, other=0.0)


@triton.jit
def counting(mask, batch, row, stop):
    """Which rows are keys and count."""
    there = row < stop
    if mask is not None:
        at = mask.data + batch.to(tl.int64) * mask.batch + row.to(tl.int64) * mask.row
        there = there & (tl.load(at, mask=there, other=0) != 0)
    return there


@triton.jit
def finite(reference):
    """A reference to subtract: 0 where there is no key yet, so that -inf - -inf does not come up."""
    return tl.where(reference == float("-inf"), 0.0, reference)


@triton.jit
def decay(lower, upper):
    """exp(lower - upper) <= 1, and 0 where there is no key yet (lower = -inf)."""
    return tl.exp(lower - finite(upper))


@triton.jit
def rounded(x, like: tl.constexpr):
    """x as it enters a product: what is summed beside the product should be the same number."""
    if like == tl.bfloat16 and not INTERPRETED:
        return x.to(tl.bfloat16).to(tl.float32)
    else:
        return x


@triton.jit
def product(x, y, like: tl.constexpr):
    """x @ y in float32, from operands as precise as the inputs, `like`, are.

    bfloat16 has the range of float32, and so has tf32, whose mantissa is that of float16. So nothing can overflow.
    """
    if like == tl.float32:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee")
    elif like == tl.float16 or INTERPRETED:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="tf32")
    else:
        return tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16))


@triton.jit
def plus_product(total, x, y, like: tl.constexpr, always):
    """total + x @ y; `always` is true, and only the compiler does not know it.

    Where products share a basic block, the compiler takes them for a chain, as in softmax attention, and has every warp hold
    the whole second operand of each (on sm_80). Behind a branch each one gets a layout of its own, and nothing spills.
    """
    if always:
        total += product(x, y, like)
    return total


@triton.jit
def first_half_end(x, level, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """For each row, x in the last row of the first half of its block of 2^(level + 1) rows."""
    row = tl.arange(0, ROWS)
    end = (((row >> (level + 1)) << 1) + 1) * (1 << level) - 1
    return tl.gather(x, tl.broadcast_to(end[:, None], [ROWS, COLUMNS]), 0)


@triton.jit
def higher_block(x, end, level, ROWS: tl.constexpr):
    """Running maxima inside blocks of 2^level rows to those inside blocks of twice as many: second halves take `end`."""
    second = ((tl.arange(0, ROWS)[:, None] >> level) & 1) == 1
    return tl.where(second, tl.maximum(x, end), x)


@triton.jit
def running_maximum(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEVELS: tl.constexpr):
    """max_{j <= i} x_j down the rows, ROWS = 2^LEVELS."""
    for level in range(LEVELS):
        x = higher_block(x, first_half_end(x, level, ROWS, COLUMNS), level, ROWS)
    return x
