"""Softmax inside blocks by the kernels: workspaces, grids, and the order of launches."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lln.ops.blocks.op import OpenOperands, Operands, Results
from lln.ops.gpu import blocks
from lln.ops.gpu.attention import on
from lln.ops.gpu.plan import Plan
from lln.ops.gpu.tensors import mask, rows
from lln.ops.gpu.tiles import SMALLEST, Shape, power_of_two, tile
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


class Far(NamedTuple):
    """The LLN branch, for blocks that mix as they write.

    out: LLN's rows, to be read where there is no `state`; else where they are kept, or None.
    """

    weight: Any  # w, as the kernels take it
    out: Any = None
    q: Any = None
    alpha: Any = None
    bias: Any = None
    state: Any = None


def forward(x: Operands) -> Results:
    return Results(outputs(x, Frames.of(x), None, None))


def forward_open(x: OpenOperands) -> Results:
    """One block of all keys, whatever the number of queries."""
    whole = Operands(x.q, x.k, x.v, x.key_mask, None, x.k.shape[2], x.scale, False)
    largest = max(x.q.shape[2], x.k.shape[2])
    return Results(outputs(whole, Frames(None, None, x.k.shape[2], largest, float(x.scale)), None, None))


def outputs(x: Operands, frames: Frames, far: Far | None, far_shape: Shape | None) -> Tensor:
    """The blocks' rows, mixed with LLN's where these are given; `far_shape` is that of LLN's heads."""
    with on(x.q.device):
        options = _options("mixed_outputs" if far_shape is not None else "block_outputs", x)
        far_sizes = {"FAR_D": 1, "FAR_COLUMNS": SMALLEST, "FAR_SLICES": 1}
        if far_shape is not None:
            far_sizes = {"FAR_D": far_shape.D, "FAR_COLUMNS": far_shape.columns, "FAR_SLICES": far_shape.slices}
        plan = Plan.of(x.q, x.cu_seqlens, options["ROWS"])
        out = empty_rows(x.q, x.v.shape[-1])
        blocks.block_outputs[(plan.total, x.q.shape[1])](
            rows(x.q), rows(x.k), rows(x.v), mask(x.key_mask), far, rows(out), plan.stretches, frames, _groups(x),
            **options, **far_sizes,
        )  # fmt: skip
        return out


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    """From the weights computed again; the output is not needed."""
    grad = grads["out"]
    assert grad is not None
    found = {name: empty_like_rows(t) for name, t in (("q", x.q), ("k", x.k), ("v", x.v))}
    gradients(grad, x, found)
    return found


def gradients(
    grad: Tensor,
    x: Operands,
    found: dict[str, Tensor],
    far: Far | None = None,
    dweight: Tensor | None = None,
    add: bool = False,
    add_values: bool = False,
) -> None:
    """Written to `found` (q, k and v), or added to what is there."""
    with on(x.q.device):
        options = _options("block_gradients", x)
        plan, frames = Plan.of(x.q, x.cu_seqlens, options["ROWS"]), Frames.of(x)
        dq, dk, dv = (rows(found[name]) for name in ("q", "k", "v"))
        rates = x.q.new_empty(*x.q.shape[:3], 3, dtype=torch.float32)
        given = (rows(x.q), rows(x.k), rows(x.v), mask(x.key_mask), rows(grad))
        last = (plan.stretches, frames, _groups(x))
        blocks.block_query_gradients[(plan.total, x.q.shape[1])](
            *given, far, dq, dweight, rates, *last, **options, ADD=add
        )
        blocks.block_key_gradients[(plan.total, x.k.shape[1])](
            *given, rates, dk, dv, *last, **options, ADD=add, ADD_VALUES=add_values
        )


def _groups(x: Operands) -> int:
    return x.q.shape[1] // x.k.shape[1]


def _options(kernel: str, x: Operands) -> dict[str, Any]:
    dim, value_dim = x.q.shape[-1], x.v.shape[-1]
    chosen = tile(kernel, Shape(dim, value_dim), x.q.dtype, x.q.device)
    sizes = {"D": dim, "E": value_dim, "COLUMNS": power_of_two(dim), "VALUES": power_of_two(value_dim)}
    return {**sizes, "ROWS": chosen.rows, "CAUSAL": x.is_causal, **chosen.options}
