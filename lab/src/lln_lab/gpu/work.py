"""What a launch moves and computes, counted from its arguments, and the time in which a card could do that.

    bytes    every tensor that a launch takes, once; twice where it is read and written again in place
    FLOPs    of the products, by formula; exponentials and sums are not counted
    time     of a launch: the larger of bytes / bandwidth and FLOPs / peak. Of an operation: their sum

Assumed: the bandwidth and the peak of the data sheets are reached, what is read a second time comes from the cache, and
launches follow each other without a gap. Real kernels reach 60 to 90 % of the first and much less of the second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lln_lab.gpu.compiling import Launch
from lln_lab.gpu.launches import BLOCK, Size


@dataclass(frozen=True)
class Card:
    """From the data sheets: dense products, without sparsity."""

    target: str
    terabytes_per_second: float
    tflops: dict[str, float]  # of products, by dtype of the inputs


CARDS = {
    "A100": Card("sm_80", 2.04, {"bfloat16": 312, "float32": 19.5}),
    "H100": Card("sm_90", 3.35, {"bfloat16": 989, "float32": 67}),
    "B200": Card("sm_100", 8.0, {"bfloat16": 2250, "float32": 75}),
    "MI300X": Card("gfx942", 5.3, {"bfloat16": 1307, "float32": 163}),
}
SAMPLED = {
    (kernel, x) for kernel in ("spread", "small_search", "large_search") for x in ("q", "k")
}  # a few rows of them
# What far keys come after a block is added in a second pass, over the same blocks: written, read again and written again.
BOTH_WAYS = {
    ("far_moments", "parts"): 2, ("far_moments", "far"): 3, ("asked_of_keys", "asked"): 2, ("asked_of_keys", "told"): 3,
}  # fmt: skip
IN_PLACE = {("prefix_states", "parts"), ("causal_outputs", "kept"), ("causal_query_gradients", "kept")}


def bytes_moved(launch: Launch) -> int:
    total, seen = 0, set()
    for name, value in launch.arguments.items():
        if (launch.name, name) in SAMPLED:
            continue
        for tensor in _tensors(value):
            if id(tensor) not in seen:
                total += _times(launch, name) * tensor.numel() * tensor.element_size()
            seen.add(id(tensor))
    return total


def _times(launch: Launch, name: str) -> int:
    """How often an argument is moved."""
    given = launch.arguments
    if (launch.name, name) in BOTH_WAYS and not given["CAUSAL"]:
        return BOTH_WAYS[launch.name, name]
    added = {"dq": "ADD", "dk": "ADD", "dv": "ADD_VALUES"}.get(name)
    return 2 if (launch.name, name) in IN_PLACE or (added is not None and given.get(added, False)) else 1


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)


def flops(launch: Launch, size: Size) -> float:
    rows, d = size.batch * size.heads * size.length, size.dim
    state, tile = 2 * rows * d * d, launch.arguments.get("ROWS", 0)
    near = 2 * rows * tile * d
    levels, block = near * launch.arguments.get("LEVELS", 0), 2 * rows * BLOCK * d
    return {
        "key_states": state,
        "outputs": state,
        "query_gradients": 2 * state,
        "key_gradients": 2 * state,
        "causal_outputs": 2 * state + levels + near,
        "causal_query_gradients": 3 * state + 2 * levels + near,
        "causal_key_gradients": 3 * state + 2 * levels + 2 * near,
        "block_outputs": 2 * block,
        "mixed_outputs": 2 * block + state,
        "block_query_gradients": 5 * block,
        "block_key_gradients": 4 * block,
        "block_moments": 2 * state,
        "near_far_outputs": 2 * (block + near) + 2 * state,
        "near_far_query_gradients": 5 * (block + near) + 4 * state,
        "near_far_key_gradients": 4 * block + 4 * state,
        "first_token_gradients": 4 * near,
        "block_asks": 2 * state,
    }.get(launch.entry, 0.0)


def least_bytes(operation: str, size: Size) -> int:
    """Inputs read once and results written once: forward q, k, v, out; backward q, k, v, out, dout and dq, dk, dv."""
    rows, each = size.batch * size.heads * size.length, size.dim * size.dtype.itemsize
    if operation.startswith("a step"):
        state = size.batch * size.heads * size.dim * (size.dim + 1) * 8
        return 2 * state + 4 * size.batch * size.heads * each
    return rows * each * (8 if operation.endswith("backward") else 4)


def milliseconds(launch: Launch, size: Size, dtype: str, card: Card) -> float:
    moved = bytes_moved(launch) / (1e12 * card.terabytes_per_second)
    return 1e3 * max(moved, flops(launch, size) / (1e12 * card.tflops[dtype]))
