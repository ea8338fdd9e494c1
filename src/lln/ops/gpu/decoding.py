"""A step of decoding: one token goes into the state, and its row comes out, in one launch. As in `lln.ops.gpu.states`,

    c' = max(c, b),    S' = S exp(c - c') + exp(b - c') v^T,    z' = z exp(c - c') + exp(b - c')
    f = exp(a + c' - m),  m = max_l (a_l + c'_l):        out = f S' / (f . z')

The state is read once and written once; exponentials are float32, and sums are in the dtype of the state's.
"""

import triton
import triton.language as tl

from lln.ops.gpu.pieces import counting, decay, finite, scale
from lln.ops.gpu.states import load_maximum, load_sums


@triton.jit
def read_row(x, batch, head, column, there):
    """The only row of a head."""
    at = x.data + batch.to(tl.int64) * x.batch + head.to(tl.int64) * x.head + column.to(tl.int64) * x.column
    return tl.load(at, mask=there, other=0.0)


@triton.jit
def step(
    q, k, v, alpha, beta, bias, mask, start, final, out, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Grid: samples, key heads, slices of VALUES columns of the values."""
    batch, key_head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column, e = tl.arange(0, COLUMNS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    own = batch * heads + key_head
    counts = counting(mask, batch, tl.zeros([COLUMNS], tl.int32), 1) & (column < D)
    value_counts = counting(mask, batch, tl.zeros([VALUES], tl.int32), 1) & (e < E)
    b = read_row(k, batch, key_head, column, counts).to(tl.float32) * scale(beta, batch, key_head, column, D)
    b = tl.where(counts, b, float("-inf"))
    values = read_row(v, batch, key_head, e, value_counts)
    c = load_maximum(start, own, column, D)
    s, z = load_sums(start, own, column, e, D, E)
    higher = tl.maximum(c, b)
    g, kept = tl.exp(b - finite(higher)).to(s.dtype), decay(c, higher).to(s.dtype)
    s, z = s * kept[:, None] + g[:, None] * values.to(s.dtype)[None, :], z * kept + g
    at = own.to(tl.int64) * D + column
    inside = (column < D)[:, None] & (e < E)[None, :]
    tl.store(final.summed + at[:, None] * E + e[None, :], s, mask=inside)
    if tl.program_id(2) == 0:
        tl.store(final.maximum + at, higher, mask=column < D)
        tl.store(final.normaliser + at, z, mask=column < D)
    for group in range(groups):
        head = key_head * groups + group
        queries = read_row(q, batch, head, column, column < D).to(tl.float32)
        a = queries * scale(alpha, batch, head, column, D) + scale(bias, batch, head, column, D) + higher
        a = tl.where(column < D, a, float("-inf"))
        f = tl.exp(a - finite(tl.max(a, 0))).to(s.dtype)
        total = tl.sum(f * z, 0)
        found = tl.sum(f[:, None] * s, 0) / tl.where(total == 0.0, 1.0, total)
        place = out.data + batch.to(tl.int64) * out.batch + head.to(tl.int64) * out.head + e.to(tl.int64) * out.column
        tl.store(place, found, mask=e < E)
