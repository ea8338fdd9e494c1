"""How many rows a program takes at a time, how many in all, and by how many warps: by kernel, head size and dtype.

`tiles.json` has what a search (`python -m tests.gpu.search`) found to compile for sm_80 and sm_90 without spilling a register.
It is not by timing: nobody has run these kernels on a GPU yet. The number of rows in all is fixed for a head size, whatever the
length, so that right padding changes no bit; a state, which a stretch writes once and which is read once, then costs a few
per cent of its rows.
"""

import json
from pathlib import Path
from typing import NamedTuple

import torch

from lln.ops.gpu.environment import interpreted

SMALLEST = 16  # of a side of a product
LARGEST_WHOLE = 128  # features of a head that is not cut into slices
SLICE = 64
LARGEST_STATE = 4096  # numbers that a causal program carries from tile to tile
MERGED = 16  # features that a program adds up over stretches
SIZES = (32, 64, 128, 256)  # of heads, that the table has

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
    "block_query_gradients": "block_gradients",
    "block_key_gradients": "block_gradients",
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
        return SLICE if self.D > LARGEST_WHOLE else power_of_two(self.D)

    @property
    def values(self) -> int:
        return power_of_two(self.E)

    @property
    def sliced_values(self) -> int:
        """Columns of the values that a causal program has: a state of 16 KB in all."""
        largest = LARGEST_STATE // 2 if interpreted() else LARGEST_STATE  # so that tests have slices
        return max(SMALLEST, min(self.values, largest // self.columns))

    @property
    def slices(self) -> int:
        return -(-self.D // self.columns)

    @property
    def whole(self) -> dict[str, int]:
        """For a program that has a slice of the features."""
        return {"D": self.D, "E": self.E, "COLUMNS": self.columns, "VALUES": self.values}

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
        return 128 if interpreted() else 32 * max(self.columns, self.values, 32)

    @property
    def size(self) -> int:
        """That of the table to go by."""
        largest = max(self.D, self.E)
        return next(size for size in SIZES if largest <= size)


def power_of_two(size: int) -> int:
    return max(SMALLEST, 1 << (size - 1).bit_length())


def key(entry: str, size: int, dtype: torch.dtype) -> str:
    return f"{entry} {size} {str(dtype).removeprefix('torch.')}"


def tile(entry: str, shape: Shape, dtype: torch.dtype) -> Tile:
    """What the table has, or the smallest tile where the search found none that does not spill."""
    return Tile(64, 4) if interpreted() else TABLE.get(key(entry, shape.size, dtype), Tile(SMALLEST, 8))


def _read() -> dict[str, Tile]:
    path = Path(__file__).parent / "tiles.json"
    table = json.loads(path.read_text()) if path.exists() else {}
    return {key: Tile(found["rows"], found["warps"]) for key, found in table.items()}


TABLE = _read()
