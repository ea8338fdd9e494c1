"""Which tile sizes compile without spilling, and the best of them: the table of `lln.ops.gpu.tiles`.

For each target, kernel, head size and dtype numbers of rows and warps are tried in the order of preference (many rows, which
means fewer steps, then few warps, which means more programs at once). The first at which all kernels of an entry compile with
no spill and within the limit of shared memory is written down, with what the assembler said of it. By what compiles, not by
time: that needs a GPU.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from lln.ops.gpu import tiles
from lln_lab.gpu.cache import Cache
from lln_lab.gpu.compiling import Launch
from lln_lab.gpu.launches import DTYPES, Size, launches

ENTRIES = sorted(set(tiles.ENTRIES.values()))
SMALL = [(64, 4), (64, 8), (32, 4), (32, 8), (16, 4), (16, 8)]
LARGE = [
    (64, 8),
    (32, 8),
    (32, 4),
    (16, 8),
    (16, 4),
]  # heads of 128 and more have never fitted into four warps of 64 rows
CAUSAL = [(32, 8), (16, 8), (16, 4)]  # nor has a causal kernel into four warps of 32
NEAR_FAR = ("block_moments", "near_far_outputs", "near_far_gradients", "block_asks")  # nor those, of tiles of a block
SMALLER_CARDS = 99 * 1024  # sm_86 and sm_89 run what is compiled for sm_80, and have less shared memory


def wanted(targets: list[str], sizes: list[int], dtypes: list[str]) -> Iterator[tuple[str, str, int, str]]:
    for dtype in dtypes:
        for size in sizes:
            for target in targets:
                for entry in ENTRIES:
                    yield entry, target, size, dtype


def search(
    entry: str, target: str, size: int, dtype: str, cache: Cache, told: Callable[[str], None]
) -> dict[str, Any] | None:
    """The first tile at which all kernels of a table's entry fit."""
    name = tiles.key(entry, size, DTYPES[dtype])
    for rows, warps in candidates(entry, target, size):
        tiles.TABLE[target][name] = tiles.Tile(rows, warps)
        said = {}
        for label, launch in of_entry(entry, target, size, dtype).items():
            told(f"{target} {name}: {rows} rows, {warps} warps, {label}")
            made = cache.compiled(launch, target)
            if made is None or not made.fits(target) or (target == "sm_80" and made.shared > SMALLER_CARDS):
                break
            said[label] = asdict(made) | {"instructions": None}
        else:
            return {"rows": rows, "warps": warps, "compiled": {k: _short(v) for k, v in said.items()}}
    del tiles.TABLE[target][name]
    return None


def candidates(entry: str, target: str, size: int) -> list[tuple[int, int]]:
    """(rows, warps) in the order of preference."""
    if target == "gfx942":  # its warps have 64 threads, and with more than four of them a thread has half the registers
        tallest = 16 if entry.startswith("causal") else 32 if entry in NEAR_FAR else 64
        return [(rows, 4) for rows in (64, 32, 16) if rows <= tallest]
    if entry == "causal_gradients":
        return CAUSAL[1:]
    return CAUSAL if entry.startswith("causal") or entry in NEAR_FAR else SMALL if size <= 64 else LARGE


def _short(made: dict[str, Any]) -> dict[str, int]:
    return {"registers": made["registers"], "shared": made["shared"]}


def of_entry(entry: str, target: str, size: int, dtype: str) -> dict[str, Launch]:
    """The kernels that go by an entry, by name; the bidirectional and the causal form of blocks differ in a comparison only."""
    with tiles.compiled_for(target):
        found = {x.entry: x for some in launches(Size(size, DTYPES[dtype])).values() for x in some}
    return {name: launch for name, launch in found.items() if tiles.ENTRIES.get(name) == entry}


def write(entry: str, target: str, size: int, dtype: str, found: dict[str, Any] | None) -> None:
    table = tiles.read_table()
    name = tiles.key(entry, size, DTYPES[dtype])
    table[target].pop(name, None)
    if found is not None:
        table[target][name] = found
    ordered = {t: dict(sorted(entries.items())) for t, entries in table.items()}
    tiles.PATH.write_text(json.dumps(ordered, indent=1) + "\n")
