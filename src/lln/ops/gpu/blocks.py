"""Softmax attention inside blocks, tile of rows by tile of keys, from the equations of `lln.ops.blocks.op`.

A tile of rows may touch several blocks: it goes over the keys from the start of its first row's block to the end of its last
row's, and pairs of different blocks do not count. Forward keeps the running maximum m_i of a row's scores and
l_i = sum_j exp(s_ij - m_i). Backward goes over the rows once for m, l and e_i = sum_j P_ij (dout_i . v_j) and once more for dq,
then over the keys for dk and dv.

As a branch of LLN+Diag, the blocks mix as they write: out_i = w_i LLN_i + (1 - w_i) Diag_i. LLN_i is computed on the spot from
the state where attention is bidirectional, and read where it is causal. On the way back each row has the share 1 - w_i, and
gradients are added to what the LLN branch has left. Since e_i is dout_i . Diag_i, dw_i = dout_i . LLN_i - e_i costs nothing.
"""

import triton
import triton.language as tl

from lln.ops.gpu.bidirectional import lln_rows
from lln.ops.gpu.pieces import counting, finite, place, product, read, share
from lln.ops.gpu.plan import clamped, stretch_at


@triton.jit
def frame(frames, sequence):
    """Where blocks are counted from, and the end of the sequence."""
    if frames.boundaries is not None:
        origin = clamped(tl.load(frames.boundaries + sequence), frames.keys)
        return origin, clamped(tl.load(frames.boundaries + sequence + 1), frames.keys)
    elif frames.first is not None:
        return tl.load(frames.first + sequence), sequence * 0 + frames.keys
    else:
        return sequence * 0, sequence * 0 + frames.keys


@triton.jit
def block_of(position, origin, size):
    """The number of a position's block; before the first, -1, where no key counts."""
    return tl.where(position < origin, -1, tl.maximum(position - origin, 0) // size)


@triton.jit
def scores_and_pairs(queries, keys, row, other, counts, origin, frames, like: tl.constexpr, CAUSAL: tl.constexpr):
    """s_ij, -inf where the pair does not count, and which pairs do."""
    scores = product(queries, tl.trans(keys), like) * frames.scale
    pairs = counts[None, :] & (
        block_of(row, origin, frames.size)[:, None] == block_of(other, origin, frames.size)[None, :]
    )
    if CAUSAL:
        pairs = pairs & (other[None, :] <= row[:, None])
    return tl.where(pairs, scores, float("-inf")), pairs


@triton.jit
def keys_of_rows(first, last, origin, end, size, CAUSAL: tl.constexpr):
    """The keys that the rows from first to last may see."""
    begin = origin + tl.maximum(block_of(first, origin, size), 0) * size
    stop = tl.minimum(origin + (block_of(last, origin, size) + 1) * size, end)
    if CAUSAL:
        stop = tl.minimum(stop, last + 1)
    return begin, stop


@triton.jit
def block_outputs(
    q, k, v, mask, far, out, stretches, frames, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    CAUSAL: tl.constexpr, FAR_D: tl.constexpr, FAR_COLUMNS: tl.constexpr, FAR_SLICES: tl.constexpr,
):  # fmt: skip
    """`far`: what to mix with, or None. Grid: tiles of rows, query heads."""
    index, head, key_head = tl.program_id(0), tl.program_id(1), tl.program_id(1) // groups
    sequence, batch, start, stop = stretch_at(stretches, index)
    origin, end = frame(frames, sequence)
    column, e = tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    like: tl.constexpr = q.data.dtype.element_ty
    row = start + tl.arange(0, ROWS)
    there = row < stop
    queries = read(q, batch, head, row, column, there[:, None] & (column < D)[None, :])
    m, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, VALUES], tl.float32)
    begin, last = keys_of_rows(start, stop - 1, origin, end, frames.size, CAUSAL)
    for first in range(begin, last, ROWS):
        other = first + tl.arange(0, ROWS)
        counts = counting(mask, batch, other, last)
        keys = read(k, batch, key_head, other, column, counts[:, None] & (column < D)[None, :])
        values = read(v, batch, key_head, other, e, counts[:, None] & (e < E)[None, :])
        scores, pairs = scores_and_pairs(queries, keys, row, other, counts, origin, frames, like, CAUSAL)
        higher = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp(scores - finite(higher)[:, None])
        kept = tl.exp(m - finite(higher))
        good = tl.abs(values.to(tl.float32)) < float("inf")
        found = found * kept[:, None] + product(p, tl.where(good, values, 0.0), like)
        if tl.min(good.to(tl.int32)) == 0:
            # A value that is not finite reaches the rows that see it, and no others: 0 x NaN would reach all of them.
            poison = product(pairs.to(tl.float32), tl.where(good, 0.0, 1.0), like)
            found = tl.where(poison > 0.0, float("nan"), found)
        total, m = total * kept + tl.sum(p, 1), higher
    found = found / tl.where(total == 0.0, 1.0, total)[:, None]
    if far is not None:
        inside = there[:, None] & (e < E)[None, :]
        if far.state is None:
            lln = read(far.out, batch, head, row, e, inside).to(tl.float32)
        else:
            own = sequence * (tl.num_programs(1) // groups) + key_head
            lln = lln_rows(
                far.q, far.alpha, far.bias, far.state, sequence, batch, head, own, row, there, e,
                FAR_D, E, FAR_COLUMNS, VALUES, ROWS, FAR_SLICES,
            )  # fmt: skip
            if far.out is not None:
                tl.store(place(far.out, batch, head, row, e), lln, mask=inside)
        found += share(far.weight, batch, head, row, there, False)[:, None] * (lln - found)
    tl.store(place(out, batch, head, row, e), found, mask=there[:, None] & (e < E)[None, :])


@triton.jit
def block_query_gradients(
    q, k, v, mask, grad, far, dq, dweight, rates, stretches, frames, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    CAUSAL: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """dq, or dq added to what is there; dw (B, Hq, N) where it is wanted; and `rates` (B, Hq, N, 3) for the keys' pass:

    m_i, 1 / l_i times the row's share, and e_i. Grid: tiles of rows, query heads.
    """
    index, head, key_head = tl.program_id(0), tl.program_id(1), tl.program_id(1) // groups
    sequence, batch, start, stop = stretch_at(stretches, index)
    origin, end = frame(frames, sequence)
    column, e = tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    like: tl.constexpr = q.data.dtype.element_ty
    row = start + tl.arange(0, ROWS)
    there = row < stop
    inside = there[:, None] & (column < D)[None, :]
    queries = read(q, batch, head, row, column, inside)
    dout = read(grad, batch, head, row, e, there[:, None] & (e < E)[None, :])
    m, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS], tl.float32)
    begin, last = keys_of_rows(start, stop - 1, origin, end, frames.size, CAUSAL)
    for first in range(begin, last, ROWS):
        other = first + tl.arange(0, ROWS)
        counts = counting(mask, batch, other, last)
        keys = read(k, batch, key_head, other, column, counts[:, None] & (column < D)[None, :])
        values = read(v, batch, key_head, other, e, counts[:, None] & (e < E)[None, :])
        scores, _ = scores_and_pairs(queries, keys, row, other, counts, origin, frames, like, CAUSAL)
        higher = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp(scores - finite(higher)[:, None])
        kept = tl.exp(m - finite(higher))
        mean = mean * kept + tl.sum(p * product(dout, tl.trans(values), like), 1)
        total, m = total * kept + tl.sum(p, 1), higher
    rate = 1.0 / tl.where(total == 0.0, 1.0, total)
    mean, m = mean * rate, finite(m)
    at_row = (batch.to(tl.int64) * tl.num_programs(1) + head) * stretches.length + row
    if far is not None:
        rate *= share(far.weight, batch, head, row, there, True)
        if dweight is not None:
            lln = read(far.out, batch, head, row, e, there[:, None] & (e < E)[None, :]).to(tl.float32)
            tl.store(dweight + at_row, tl.sum(dout.to(tl.float32) * lln, 1) - mean, mask=there)
    at = rates + at_row * 3
    tl.store(at, m, mask=there)
    tl.store(at + 1, rate, mask=there)
    tl.store(at + 2, mean, mask=there)
    found = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(begin, last, ROWS):
        other = first + tl.arange(0, ROWS)
        counts = counting(mask, batch, other, last)
        keys = read(k, batch, key_head, other, column, counts[:, None] & (column < D)[None, :])
        values = read(v, batch, key_head, other, e, counts[:, None] & (e < E)[None, :])
        scores, _ = scores_and_pairs(queries, keys, row, other, counts, origin, frames, like, CAUSAL)
        p = tl.exp(scores - m[:, None]) * rate[:, None]
        found += product(p * (product(dout, tl.trans(values), like) - mean[:, None]), keys, like)
    found *= frames.scale
    if ADD:
        found += read(dq, batch, head, row, column, inside).to(tl.float32)
    tl.store(place(dq, batch, head, row, column), found, mask=inside)


@triton.jit
def block_key_gradients(
    q, k, v, mask, grad, rates, dk, dv, stretches, frames, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    CAUSAL: tl.constexpr, ADD: tl.constexpr, ADD_VALUES: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of keys, key heads. The query heads of a key head add up."""
    index, key_head, key_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    sequence, batch, start, stop = stretch_at(stretches, index)
    origin, end = frame(frames, sequence)
    column, e = tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    like: tl.constexpr = q.data.dtype.element_ty
    other = start + tl.arange(0, ROWS)
    there = other < stop
    counts = counting(mask, batch, other, stop)
    keys = read(k, batch, key_head, other, column, counts[:, None] & (column < D)[None, :])
    values = read(v, batch, key_head, other, e, counts[:, None] & (e < E)[None, :])
    of_keys, of_values = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, VALUES], tl.float32)
    # The rows that may see these keys are those of the same blocks; when causal, from the first of these keys on.
    begin, last = keys_of_rows(start, stop - 1, origin, end, frames.size, False)
    if CAUSAL:
        begin = tl.maximum(begin, start)
    for first in range(begin, last, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = row < last
        for group in range(groups):
            head = key_head * groups + group
            queries = read(q, batch, head, row, column, inside[:, None] & (column < D)[None, :])
            dout = read(grad, batch, head, row, e, inside[:, None] & (e < E)[None, :])
            at = rates + ((batch.to(tl.int64) * key_heads * groups + head) * stretches.length + row) * 3
            m, rate = tl.load(at, mask=inside, other=0.0), tl.load(at + 1, mask=inside, other=0.0)
            mean = tl.load(at + 2, mask=inside, other=0.0)
            scores, _ = scores_and_pairs(queries, keys, row, other, counts, origin, frames, like, CAUSAL)
            p = tl.exp(scores - m[:, None]) * rate[:, None]
            of_values += product(tl.trans(p), dout, like)
            slopes = p * (product(dout, tl.trans(values), like) - mean[:, None])
            of_keys += product(tl.trans(slopes), queries, like)
    of_keys *= frames.scale
    kept, written = there[:, None] & (column < D)[None, :], there[:, None] & (e < E)[None, :]
    if ADD:
        of_keys += read(dk, batch, key_head, other, column, kept).to(tl.float32)
    if ADD_VALUES:
        of_values += read(dv, batch, key_head, other, e, written).to(tl.float32)
    tl.store(place(dk, batch, key_head, other, column), of_keys, mask=kept)
    tl.store(place(dv, batch, key_head, other, e), of_values, mask=written)
