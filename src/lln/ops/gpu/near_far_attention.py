"""Near exact, far by moments, by the kernels: moments of blocks, of what is far to each, rows. Three launches."""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.gpu import far_moments, near_far
from lln.ops.gpu.attention import on
from lln.ops.gpu.block_attention import Frames
from lln.ops.gpu.environment import interpreted
from lln.ops.gpu.plan import Plan
from lln.ops.gpu.tensors import mask, rows, scales
from lln.ops.gpu.tiles import Shape, power_of_two, tile
from lln.ops.near_far.op import Operands, Results
from lln.ops.operation import empty_rows

SLICE = 64  # features of a block's moments that a program has


class Moments(NamedTuple):
    """As `lln.ops.near_far.moments` has them, one set a block and key head, contiguous."""

    total: Tensor
    key_mean: Tensor
    key_spread: Tensor
    value_mean: Tensor
    product: Tensor
    maximum: Tensor
    summed: Tensor
    normaliser: Tensor

    @staticmethod
    def empty(like: Tensor, sets: tuple[int, int], dim: int, values: int) -> "Moments":
        of_keys, pairs = (*sets, dim), (*sets, dim, values)
        shapes = (sets, of_keys, of_keys, (*sets, values), pairs, of_keys, pairs, of_keys)
        return Moments(*(like.new_empty(shape) for shape in shapes))


def forward(x: Operands) -> Results:
    dim, values = x.k.shape[-1], x.v.shape[-1]
    length, heads = x.k.shape[2], x.k.shape[1]
    size, neighbours = min(x.block_size, length), min(x.neighbours, length)
    shape = Shape(dim, values)
    columns = min(SLICE, power_of_two(dim))
    slices = -(-dim // columns)
    with on(x.q.device):
        plan = Plan.of(x.k, x.cu_seqlens, size)
        frames = Frames.of(x)  # type: ignore[arg-type]  # it has the fields that are read
        parts, far = (Moments.empty(x.beta, (plan.total, heads), dim, values) for _ in range(2))
        chosen = tile("key_states", shape, x.q.dtype, x.q.device)
        sizes = {"D": dim, "E": values, "VALUES": shape.values}
        far_moments.block_moments[(plan.total, heads, slices)](
            rows(x.k), rows(x.v), scales(x.beta), mask(x.key_mask), parts, plan.stretches, frames,
            min(x.first_tokens, length), **sizes, COLUMNS=columns, ROWS=min(chosen.rows, 32), num_warps=8,
        )  # fmt: skip
        merged = columns if interpreted() else 16
        far_moments.far_moments[(plan.sequences, heads, -(-dim // merged))](
            parts, far, plan.stretches, neighbours, **sizes, COLUMNS=merged, CAUSAL=x.is_causal, num_warps=8
        )
        # Rows before a sample's first key belong to no block.
        out = empty_rows(x.q, values) if x.key_mask is None else torch.zeros_like(empty_rows(x.q, values))
        tall = 16 if interpreted() or max(dim, values) > 128 else 32
        tiles = -(-size // tall)
        near_far.near_far_outputs[(plan.total * tiles, x.q.shape[1])](
            rows(x.q), rows(x.k), rows(x.v), scales(x.alpha), scales(x.bias), x.weights.contiguous(), mask(x.key_mask),
            far, rows(out), plan.stretches, frames, x.q.shape[1] // heads, neighbours, min(x.first_tokens, length),
            **sizes, COLUMNS=columns, WHOLE=power_of_two(dim), ROWS=tall, SLICES=slices, TILES=tiles,
            CAUSAL=x.is_causal, num_warps=8,
        )  # fmt: skip
        return Results(out)
