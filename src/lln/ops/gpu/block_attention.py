"""Softmax inside blocks by the kernels: workspaces, grids, and the order of launches."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lln.ops.blocks.op import OpenOperands, Operands, Results
from lln.ops.gpu import blocks
from lln.ops.gpu.attention import on
from lln.ops.gpu.plan import Plan
from lln.ops.gpu.tensors import mask, rows
from lln.ops.gpu.tiles import Shape, power_of_two, tile
from lln.ops.operation import empty_like_rows, empty_rows


class Frames(NamedTuple):
    """Where blocks begin: at packed boundaries, from each sample's first key that counts, or from the first position."""

    boundaries: Tensor | None
    first: Tensor | None
    keys: int
    size: int
    scale: float

    @staticmethod
    def of(x: Operands) -> "Frames":
        length = x.k.shape[2]
        boundaries = None if x.cu_seqlens is None else x.cu_seqlens.contiguous()
        first = None if x.key_mask is None else x.key_mask.int().argmax(dim=1).int()
        return Frames(boundaries, first, length, min(x.block_size, length), float(x.scale))


def forward(x: Operands) -> Results:
    return Results(_outputs(x, x.q, Frames.of(x)))


def forward_open(x: OpenOperands) -> Results:
    """One block of all keys, whatever the number of queries."""
    whole = Operands(x.q, x.k, x.v, x.key_mask, None, x.k.shape[2], x.scale, False)
    largest = max(x.q.shape[2], x.k.shape[2])
    return Results(_outputs(whole, x.q, Frames(None, None, x.k.shape[2], largest, float(x.scale))))


def _outputs(x: Operands, q: Tensor, frames: Frames) -> Tensor:
    with on(q.device):
        options = _options("block_outputs", x)
        plan = Plan.of(q, x.cu_seqlens, options["ROWS"])
        out = empty_rows(q, x.v.shape[-1])
        blocks.block_outputs[(plan.total, q.shape[1])](
            rows(q), rows(x.k), rows(x.v), mask(x.key_mask), rows(out), plan.stretches, frames, _groups(x), **options
        )
        return out


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    """From the weights computed again; the output is not needed."""
    grad = grads["out"]
    assert grad is not None
    with on(x.q.device):
        options = _options("block_gradients", x)
        plan, frames = Plan.of(x.q, x.cu_seqlens, options["ROWS"]), Frames.of(x)
        dq, dk, dv = (empty_like_rows(t) for t in (x.q, x.k, x.v))
        rates = x.q.new_empty(*x.q.shape[:3], 3, dtype=torch.float32)
        given = (rows(x.q), rows(x.k), rows(x.v), mask(x.key_mask), rows(grad))
        last = (plan.stretches, frames, _groups(x))
        blocks.block_query_gradients[(plan.total, x.q.shape[1])](*given, rows(dq), rates, *last, **options)
        blocks.block_key_gradients[(plan.total, x.k.shape[1])](*given, rates, rows(dk), rows(dv), *last, **options)
        return {"q": dq, "k": dk, "v": dv}


def _groups(x: Operands) -> int:
    return x.q.shape[1] // x.k.shape[1]


def _options(kernel: str, x: Operands) -> dict[str, Any]:
    dim, value_dim = x.q.shape[-1], x.v.shape[-1]
    chosen = tile(kernel, Shape(dim, value_dim), x.q.dtype)
    sizes = {"D": dim, "E": value_dim, "COLUMNS": power_of_two(dim), "VALUES": power_of_two(value_dim)}
    return {**sizes, "ROWS": chosen.rows, "CAUSAL": x.is_causal, **chosen.options}
