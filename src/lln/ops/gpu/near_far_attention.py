"""Near exact, far by moments, by the kernels: workspaces, grids, and the order of launches.

Forward: moments of blocks, of what is far to each, rows. Backward: the same moments again, rows, what they ask of far keys,
what each block of keys is told, keys; one more launch for first tokens, and one for gradients of parameters.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lln.ops.gpu import far_gradients, far_moments, near_far, near_far_gradients, near_far_keys, sums
from lln.ops.gpu.attention import on
from lln.ops.gpu.block_attention import Frames
from lln.ops.gpu.environment import interpreted
from lln.ops.gpu.plan import Plan
from lln.ops.gpu.tensors import mask, rows, scales
from lln.ops.gpu.tiles import LARGEST_OPERAND, SMALLEST, Shape, largest_pair, power_of_two, tile
from lln.ops.near_far.op import WEIGHTS, Operands, Results
from lln.ops.operation import empty_rows

SLICE = 32 if interpreted() else 64  # features of a block's moments that a program has; fewer so that tests have slices
RATES = near_far_gradients.RATES.value


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


class Asked(NamedTuple):
    """What rows ask of far keys (`lln.ops.gpu.far_gradients`), one set a block and key head, contiguous."""

    normaliser: Tensor  # y
    offset: Tensor  # o
    curve: Tensor  # h
    product: Tensor  # G
    summed: Tensor  # U
    value_offset: Tensor  # t
    maximum: Tensor | None  # what U and y are relative to; None: the block's own

    @staticmethod
    def empty(like: Tensor, sets: tuple[int, int], dim: int, values: int, parts: int | None = None) -> "Asked":
        """`parts`: how many t is the sum of, for a block of keys; None: for a block of rows."""
        of_keys, pairs = (*sets, dim), (*sets, dim, values)
        of_values = (*sets, values) if parts is None else (*sets, parts, values)
        normaliser, offset, curve, product, summed, value_offset = (
            like.new_empty(shape) for shape in (of_keys, of_keys, of_keys, pairs, pairs, of_values)
        )
        maximum = None if parts is None else like.new_empty(of_keys)
        return Asked(normaliser, offset, curve, product, summed, value_offset, maximum)


class FirstTokens(NamedTuple):
    """Parts of the gradients of first tokens: (stretches, Hk, first tokens, D) and (..., Dv)."""

    of_keys: Tensor
    of_values: Tensor


class Call:
    """A record of operands as the kernels see it."""

    def __init__(self, x: Operands) -> None:
        self.x = x
        self.dim, self.values = x.k.shape[-1], x.v.shape[-1]
        self.heads, length = x.k.shape[1], x.k.shape[2]
        self.groups = x.q.shape[1] // self.heads
        # any number of Python's, made to fit one of a kernel's
        self.size, self.neighbours = min(x.block_size, length), min(x.neighbours, length)
        self.first_tokens = min(x.first_tokens, length)
        self.shape = Shape(self.dim, self.values)
        self.plan = Plan.of(x.k, x.cu_seqlens, self.size)
        self.frames = Frames.of(x)  # type: ignore[arg-type]  # it has the fields that are read
        self.sizes = {"D": self.dim, "E": self.values, "VALUES": self.shape.values}
        merged = min(SLICE, power_of_two(self.dim)) if interpreted() else 16
        self.merging = {**self.sizes, "COLUMNS": merged, "CAUSAL": x.is_causal, "num_warps": 8}
        self.merging_grid = (self.plan.sequences, self.heads, -(-self.dim // merged))

    def options(self, kernel: str, largest: int = LARGEST_OPERAND) -> dict[str, Any]:
        """Sizes of a kernel whose programs have some rows of a block, or all of them, and a slice of the features."""
        chosen = tile(kernel, self.shape, self.x.q.dtype, self.x.q.device)
        columns = min(SLICE, power_of_two(self.dim), max(SMALLEST, largest // self.shape.values))
        return {**self.sizes, "COLUMNS": columns, "ROWS": chosen.rows, **chosen.options}

    def by_tiles(self, kernel: str, largest: int = LARGEST_OPERAND) -> dict[str, Any]:
        """`options`, for one tile of rows a program."""
        found = self.options(kernel, largest)
        return {
            **found, "WHOLE": power_of_two(self.dim), "SLICES": -(-self.dim // found["COLUMNS"]),
            "TILES": -(-self.size // found["ROWS"]), "CAUSAL": self.x.is_causal,
        }  # fmt: skip

    def gradients(self, of_keys: bool = False) -> dict[str, Any]:
        """`by_tiles`, for gradients of rows or of keys."""
        return self.by_tiles("near_far_gradients", largest_pair(self.shape, self.x.q.device, of_keys))

    def moments(self) -> tuple[Moments, Moments]:
        """Of each block's keys, and of those that are far to it."""
        x, sets = self.x, (self.plan.total, self.heads)
        parts, far = (Moments.empty(x.beta, sets, self.dim, self.values) for _ in range(2))
        options = self.options("block_moments")
        far_moments.block_moments[(*sets, -(-self.dim // options["COLUMNS"]))](
            rows(x.k), rows(x.v), scales(x.beta), mask(x.key_mask), parts, self.plan.stretches, self.frames,
            self.first_tokens, **options,
        )  # fmt: skip
        far_moments.far_moments[self.merging_grid](
            parts, far, self.plan.stretches, self.neighbours, **self.merging
        )  # fmt: skip
        return parts, far

    def empty(self, like: Tensor, columns: int) -> Tensor:
        """For rows or their gradients. Those before a sample's first key belong to no block, and no program has them."""
        found = empty_rows(like, columns)
        return found if self.x.key_mask is None else torch.zeros_like(found)


def forward(x: Operands) -> Results:
    with on(x.q.device):
        call = Call(x)
        _, far = call.moments()
        out, options = call.empty(x.q, call.values), call.by_tiles("near_far_outputs")
        near_far.near_far_outputs[(call.plan.total * options["TILES"], x.q.shape[1])](
            rows(x.q), rows(x.k), rows(x.v), scales(x.alpha), scales(x.bias), x.weights.contiguous(), mask(x.key_mask),
            far, rows(out), call.plan.stretches, call.frames, call.groups, call.neighbours, call.first_tokens, **options,
        )  # fmt: skip
        return Results(out)


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    """Everything is computed again; the output is not needed. Gradients of q, k and v come unasked."""
    grad = grads["out"]
    assert grad is not None
    with on(x.q.device):
        call = Call(x)
        parts, far = call.moments()
        options = call.gradients()
        tiles, query_heads = call.plan.total * options["TILES"], x.q.shape[1]
        dq, dk, dv = (call.empty(t, t.shape[-1]) for t in (x.q, x.k, x.v))
        dalpha, dbias = (x.alpha.new_empty(tiles, query_heads, call.dim) for _ in range(2))
        dweights = x.alpha.new_empty(tiles, query_heads, len(WEIGHTS))
        rates = x.alpha.new_empty(*x.q.shape[:2], RATES, x.q.shape[2])
        reach = (call.plan.stretches, call.frames, call.groups, call.neighbours, call.first_tokens)
        near_far_gradients.near_far_query_gradients[(tiles, query_heads)](
            rows(x.q), rows(x.k), rows(x.v), scales(x.alpha), scales(x.bias), x.weights.contiguous(), mask(x.key_mask),
            far, rows(grad), rows(dq), dalpha, dbias, dweights, rates, *reach, **options,
        )  # fmt: skip
        told = _told(call, grad, rates, parts, far)
        dbeta = x.alpha.new_empty(tiles, call.heads, call.dim)
        of_first, chunks = _of_first_tokens(call, grad, rates)
        stretches, frames, groups, neighbours, first_tokens = reach
        near_far_keys.near_far_key_gradients[(tiles, call.heads)](
            rows(x.q), rows(x.k), rows(x.v), scales(x.beta), mask(x.key_mask), parts, told, rows(grad), rates, of_first,
            rows(dk), rows(dv), dbeta, stretches, chunks, frames, groups, neighbours, first_tokens,
            told.value_offset.shape[2], **call.gradients(of_keys=True),
        )  # fmt: skip
        found = {"q": dq, "k": dk, "v": dv}
        if wanted & {"alpha", "beta", "bias", "weights"}:
            found |= _summed_parameters(call, options["TILES"], dalpha, dbias, dweights, dbeta)
        return found


def _told(call: Call, grad: Tensor, rates: Tensor, parts: Moments, far: Moments) -> Asked:
    """What each block of keys is told by all rows that it is far to."""
    x, sets = call.x, (call.plan.total, call.heads)
    asked = Asked.empty(x.beta, sets, call.dim, call.values)
    told = Asked.empty(x.beta, sets, call.dim, call.values, call.merging_grid[2])
    options = call.options("block_asks")
    far_gradients.block_asks[(*sets, -(-call.dim // options["COLUMNS"]))](
        rows(x.q), scales(x.alpha), scales(x.bias), rows(grad), rates, far, asked, call.plan.stretches, call.frames,
        call.groups, **options,
    )  # fmt: skip
    far_gradients.asked_of_keys[call.merging_grid](
        parts, far, asked, told, call.plan.stretches, call.neighbours, **call.merging
    )
    return told


def _of_first_tokens(call: Call, grad: Tensor, rates: Tensor) -> tuple[FirstTokens | None, Any]:
    """Parts of stretches of whole blocks, as many rows as LLN's and no fewer than first tokens; and where these lie."""
    x, first = call.x, call.first_tokens
    if first == 0:
        return None, None
    most = max(call.shape.stretch, first)
    plan = Plan.of(x.k, x.cu_seqlens, -(-most // call.size) * call.size)
    sets = (plan.total, call.heads, first)
    found = FirstTokens(x.beta.new_empty(*sets, call.dim), x.beta.new_empty(*sets, call.values))
    options = call.gradients()
    slices = options.pop("SLICES")
    options["TILES"] = -(-first // options["ROWS"])
    near_far_keys.first_token_gradients[(plan.total * options["TILES"], call.heads, slices)](
        rows(x.q), rows(x.k), rows(x.v), mask(x.key_mask), rows(grad), rates, found, plan.stretches, call.frames,
        call.groups, call.neighbours, first, **options,
    )  # fmt: skip
    return found, plan.stretches


def _summed_parameters(
    call: Call, tiles: int, alpha: Tensor, bias: Tensor, weights: Tensor, beta: Tensor
) -> dict[str, Tensor]:
    given = {"alpha": alpha, "bias": bias, "weights": weights, "beta": beta}
    found = {name: t.new_empty(call.plan.sequences, *t.shape[1:]) for name, t in given.items()}
    query_heads = alpha.shape[1]
    sums.sum_parameters[(call.plan.sequences, query_heads + call.heads)](
        *given.values(), *found.values(), call.plan.stretches, query_heads, call.heads,
        TILES=tiles, D=call.dim, COLUMNS=power_of_two(call.dim), num_warps=2,
    )  # fmt: skip
    if call.x.cu_seqlens is not None:  # weights are of the sample
        found["weights"] = torch.sum(found["weights"], dim=0, keepdim=True)
    return found
