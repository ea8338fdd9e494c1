"""How many rows a program takes at a time, how many in all, and by how many warps: by kernel, head size and dtype.

`tiles.json` has what a search (`lln gpu tiles`, in the laboratory) found to compile for each target without spilling a
register. It is not by timing: nobody has run these kernels on a GPU yet. The number of rows in all is fixed for a head size,
whatever the length, so that right padding changes no bit; a state, which a stretch writes once and which is read once, then
costs a few per cent of its rows.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lln.ops.gpu.environment import interpreted

SMALLEST = 16  # of a side of a product
LARGEST_WHOLE = 128  # features of a head that is not cut into slices
SLICE = 64
LARGEST_OPERAND = (
    8192  # numbers of a state that lie in shared memory at once where that is small, or two states are read
)
LARGEST_STATE = 4096  # numbers of a state that a causal program has in registers: the whole of it, or a slice
LARGEST_GRADIENT = 1024  # the same for gradients, which have two states
LARGEST_VALUES = 128  # columns of the values that causal gradients are computed from at a time
MERGED = 16  # features that a program adds up over stretches
SIZES = (64, 128, 256)  # of heads, that the table has
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
PATH = Path(__file__).parent / "tiles.json"

# Kernels that share an entry of the table share workspaces that are laid out by tiles.
ENTRIES = {
    "key_states": "key_states",
    "outputs": "outputs",
    "query_gradients": "query_gradients",
    "key_gradients": "key_gradients",
    "causal_outputs": "causal_outputs",
    "causal_query_gradients": "causal_gradients",
    "causal_key_gradients": "causal_gradients",
    "block_outputs": "block_outputs",
    "mixed_outputs": "mixed_outputs",
    "block_query_gradients": "block_gradients",
    "block_key_gradients": "block_gradients",
    "block_moments": "block_moments",
    "near_far_outputs": "near_far_outputs",
    "near_far_query_gradients": "near_far_gradients",
    "near_far_key_gradients": "near_far_gradients",
    "first_token_gradients": "near_far_gradients",
    "block_asks": "block_asks",
}


class Tile(NamedTuple):
    rows: int
    warps: int

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": 2}


class Shape(NamedTuple):
    """The sizes of a head as kernels are compiled for them."""

    D: int
    E: int

    @property
    def columns(self) -> int:
        """All features, or a slice of them where a state as the operand of a product would not fit."""
        if _is_amd():
            return min(power_of_two(self.D), max(SMALLEST, LARGEST_OPERAND // self.values))
        return SLICE if self.D > LARGEST_WHOLE else power_of_two(self.D)

    @property
    def values(self) -> int:
        return power_of_two(self.E)

    def causal(self, gradients: bool, dtype: torch.dtype, device: torch.device) -> dict[str, int]:
        """For a causal program: slices of the features, one after the other, or all of them if the state stays in registers."""
        columns, largest = power_of_two(self.D), LARGEST_GRADIENT if gradients else largest_state(dtype, device)
        if interpreted():
            columns = min(columns, 32)  # so that tests have slices
        elif columns * self.values > largest:
            columns = max(SMALLEST, min(columns // 2, largest // self.values))
        return {"D": self.D, "E": self.E, "COLUMNS": columns, "VALUES": self.values, "SLICES": -(-self.D // columns)}

    @property
    def slices(self) -> int:
        return -(-self.D // self.columns)

    @property
    def whole(self) -> dict[str, int]:
        """For a program that has a slice of the features."""
        return {"D": self.D, "E": self.E, "COLUMNS": self.columns, "VALUES": self.values}

    @property
    def stepping(self) -> dict[str, int]:
        """For a step of decoding: all features and some of the values, so that there are many programs."""
        columns = power_of_two(self.D)
        values = max(SMALLEST, min(self.values, LARGEST_STATE // columns // (8 if interpreted() else 1)))
        return {"D": self.D, "E": self.E, "COLUMNS": columns, "VALUES": values}

    @property
    def merging(self) -> dict[str, int]:
        """For a program that adds up over stretches: few features, so that there are many programs."""
        merged = self.columns if interpreted() else MERGED
        return {"D": self.D, "E": self.E, "COLUMNS": merged, "VALUES": self.values}

    @property
    def merged_slices(self) -> int:
        return -(-self.D // self.merging["COLUMNS"])

    @property
    def stretch(self) -> int:
        """Rows in all: many for a large state."""
        return 32 if interpreted() else 32 * max(self.columns, self.values, 32)

    @property
    def size(self) -> int:
        """That of the table to go by."""
        largest = max(self.D, self.E)
        return next(size for size in SIZES if largest <= size)


def power_of_two(size: int) -> int:
    return max(SMALLEST, 1 << (size - 1).bit_length())


def key(entry: str, size: int, dtype: torch.dtype) -> str:
    """float16 goes by float32: its products have operands of that size, too."""
    return f"{entry} {size} {'bfloat16' if dtype == torch.bfloat16 else 'float32'}"


def tile(entry: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tile:
    """What the table has, or the smallest tile where the search found none that does not spill."""
    if interpreted():
        return Tile(16, 4)
    target = _target_instead or target_of(device)
    return TABLE[target].get(key(entry, shape.size, dtype), Tile(SMALLEST, 4 if target == "gfx942" else 8))


def addresses_anew(device: torch.device) -> bool:
    """Whether to compute addresses anew for each slice of features: kept over the slices they spill, but anew on sm_90."""
    return target_for(device) in ("sm_80", "sm_100")


def largest_state(dtype: torch.dtype, device: torch.device) -> int:
    """Numbers of a state that a causal program has in registers: fewer on sm_100 beside operands of float32."""
    scarce = dtype != torch.bfloat16 and target_for(device) == "sm_100"
    return LARGEST_STATE // 2 if scarce else LARGEST_STATE


def largest_pair(shape: Shape, device: torch.device, of_keys: bool) -> int:
    """Numbers of each of two matrices that a program of near-far gradients reads: fewer where it would spill or not fit."""
    target = target_for(device)
    halved = LARGEST_OPERAND // 2
    if target == "gfx942" or (target == "sm_80" and of_keys and shape.values > LARGEST_WHOLE):
        return halved
    return max(halved, 32 * shape.values) if target == "sm_100" else LARGEST_OPERAND


def _is_amd() -> bool:
    return _target_instead == "gfx942" or (_target_instead is None and torch.version.hip is not None)


def target_for(device: torch.device) -> str:
    """What launches are laid out for; nothing under the interpreter."""
    return "" if interpreted() else _target_instead or target_of(device)


@lru_cache
def target_of(device: torch.device) -> str:
    """The column of the table for a card: the newest that is not newer than the card."""
    if torch.version.hip is not None:
        return "gfx942"
    major, _ = torch.cuda.get_device_capability(device)
    return "sm_100" if major >= 10 else "sm_90" if major == 9 else "sm_80"


_target_instead: str | None = None


@contextmanager
def compiled_for(target: str) -> Iterator[None]:
    """Launches inside are laid out for this target, whatever the device: for compiling ahead of time."""
    global _target_instead
    before, _target_instead = _target_instead, target
    try:
        yield
    finally:
        _target_instead = before


def read_table() -> dict[str, dict[str, Any]]:
    """By target and key: rows, warps, and what the assembler said."""
    table: dict[str, dict[str, Any]] = json.loads(PATH.read_text()) if PATH.exists() else {}
    return {target: table.get(target, {}) for target in TARGETS}


TABLE = {
    target: {key: Tile(found["rows"], found["warps"]) for key, found in entries.items()}
    for target, entries in read_table().items()
}
