"""`python -m tests.gpu.search`: which tile sizes compile for sm_80 and sm_90 without spilling, and the best of them.

For each kernel, head size and dtype it tries numbers of rows and warps in the order of preference (many rows, which means fewer
steps, then few warps, which means more programs at once) and writes the first that compiles for both targets with no spill and
within the limit of shared memory to `src/lln/ops/gpu/tiles.json`, with what the assembler said of it.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch

from lln.ops.blocks.op import Operands as BlockOperands
from lln.ops.gpu import attention, block_attention, tiles
from lln.ops.lln.op import Operands
from tests.gpu.compiling import SHARED_MEMORY, Compiled, Launch, caught, compiled

TARGETS = (80, 90)
SIZES = (32, 64, 128, 256)
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
ENTRIES = sorted(set(tiles.ENTRIES.values()))
LENGTH = 1 << 16  # several stretches: a number that is 1 would be compiled into the kernels
ROWS, WARPS = (64, 32, 16), (4, 8, 16)


def launches(size: int, dtype: torch.dtype, causal: bool) -> list[Launch]:
    """Of a forward and a backward pass, at a head size."""
    q, k, v = (torch.empty(1, 2, LENGTH, size, dtype=dtype) for _ in range(3))
    scale = torch.ones(1, 2, size)
    x = Operands(q, k, v, scale, scale, scale, is_causal=causal)
    y = BlockOperands(q, k, v, None, None, 128, size**-0.5, causal)
    with caught() as found:
        if size <= tiles.LARGEST_WHOLE or not causal:
            results = attention.forward(x)
            attention.backward({"out": results.out, "summed": None, "normaliser": None}, results, x, set())
        near = block_attention.forward(y)
        block_attention.backward({"out": near.out}, near, y, set())
    return found


def fits(found: Compiled, arch: int) -> bool:
    return found.stack == 0 and found.spills == 0 and found.shared <= SHARED_MEMORY[arch]


def search(entry: str, size: int, dtype: torch.dtype) -> dict[str, Any] | None:
    """The first tile at which all kernels of a table's entry fit."""
    for rows, warps in itertools.product(ROWS, WARPS):
        tiles.TABLE[tiles.key(entry, size, dtype)] = tiles.Tile(rows, warps)
        mine = [x for x in launches(size, dtype, entry.startswith("causal")) if tiles.ENTRIES.get(x.name) == entry]
        said = {}
        for launch, arch in itertools.product(mine, TARGETS):
            made = compiled(launch, arch)
            if not fits(made, arch):
                break
            said[f"{launch.name} sm_{arch}"] = {"registers": made.registers, "shared": made.shared}
        else:
            return {"rows": rows, "warps": warps, "compiled": said}
    return None


def main() -> None:
    """Arguments choose: any of the names of entries, dtypes and sizes; none of a kind means all of it."""
    path = Path(tiles.__file__).parent / "tiles.json"
    for size, dtype, entry in itertools.product(SIZES, DTYPES.values(), ENTRIES):
        tiles.TABLE.setdefault(tiles.key(entry, size, dtype), tiles.Tile(ROWS[-1], WARPS[-1]))
    chosen = [[o for o in options if str(o) in sys.argv[1:]] or options for options in (SIZES, list(DTYPES), ENTRIES)]
    for size, name, entry in itertools.product(*chosen):
        key = tiles.key(str(entry), int(size), DTYPES[str(name)])
        if str(entry).startswith("causal") and int(size) > tiles.LARGEST_WHOLE:
            continue
        found = search(str(entry), int(size), DTYPES[str(name)])
        print(key, found and (found["rows"], found["warps"]), flush=True)
        table = json.loads(path.read_text()) if path.exists() else {}
        table.pop(key, None)
        if found is not None:
            table[key] = found
        path.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
