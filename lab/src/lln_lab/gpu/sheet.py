"""`lln gpu sheet`: every kernel of every operation compiled for GPUs that are not here, and what it would cost there."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lln.ops.gpu import tiles
from lln_lab.gpu import matching, peers, work
from lln_lab.gpu.cache import Cache
from lln_lab.gpu.compiling import TARGETS, Compiled, Launch
from lln_lab.gpu.launches import BLOCK, DTYPES, FIRST_TOKENS, MATCHING, NEIGHBOURS, Size, launches

WAYS = (("sample", "triton"), ("sample", "chunked"), ("table", "chunked"))


@dataclass(frozen=True)
class Plan:
    targets: tuple[str, ...] = tuple(TARGETS)
    sizes: tuple[int, ...] = (64, 128, 256, 32)
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    peers: bool = True
    compiling: bool = True  # what is not known; else it is left out


Known = dict[str, dict[str, Any]]


def rows_by_key(path: Path | None) -> Known:
    """What an earlier sheet said of each kernel, by what determines its code."""
    told = {"kernels": []} if path is None else json.loads(path.read_text())
    rows = [*told["kernels"], *told.get("peers", {}).get("kernels", [])]
    return {row["key"]: row for row in rows if "key" in row}


def run(plan: Plan, cache: Cache, told: Callable[[str, int], None], known: Known | None = None) -> dict[str, Any]:
    """`told` hears what is compiled next and how many kernels there are in all; what is `known` is taken as it is."""
    wanted = [(t, d, s) for d in plan.dtypes for s in plan.sizes for t in plan.targets]
    laid_out = {(t, d, s): _launches(t, d, s) for t, d, s in wanted}
    total = sum(len(_different(found)) for found in laid_out.values())
    rows = Rows(cache, known or {}, plan.compiling)
    kernels, operations = [], []
    for (target, dtype, size), found in laid_out.items():
        for name, launch in _different(found).items():
            told(f"{target} {dtype} {size} {name}", total)
            kernels += rows.of(name, launch, target, dtype, size)
        timed = {name: some for name, some in found.items() if not name.startswith(MATCHING)}
        operations += [_operation(name, some, target, dtype, size) for name, some in timed.items()]
    others = peers.sheet(plan.targets, plan.dtypes, plan.sizes, rows.of, told) if plan.peers else {"kernels": []}
    shape = asdict(Size(0, DTYPES["bfloat16"]))
    return {
        "plan": asdict(plan),
        "shape": {name: shape[name] for name in ("batch", "heads", "length")}
        | {"block_size": BLOCK, "neighbours": NEIGHBOURS, "first_tokens": FIRST_TOKENS},
        "cards": {name: asdict(card) for name, card in work.CARDS.items()},
        "kernels": kernels,
        "operations": operations,
        "peers": others,
        "matching": [matching.counted(Size(64, DTYPES["bfloat16"]), *way) for way in WAYS],
    }


def _launches(target: str, dtype: str, size: int) -> dict[str, list[Launch]]:
    with tiles.compiled_for(target):
        return launches(Size(size, DTYPES[dtype]))


def _different(found: dict[str, list[Launch]]) -> dict[str, Launch]:
    """Each kernel once, by name."""
    return {launch.entry: launch for some in found.values() for launch in some}


@dataclass(frozen=True)
class Rows:
    """What is said of a kernel: as it is known, as it was compiled before, or as it is compiled now."""

    cache: Cache
    known: Known
    compiling: bool

    def of(self, name: str, launch: Launch, target: str, dtype: str, size: int) -> list[dict[str, Any]]:
        """One row, or none where nothing is known and nothing is to be compiled."""
        row = self.known.get(launch.key(target))
        if row is not None:  # perhaps of another dtype or head size, which this kernel does not depend on
            return [row | {"kernel": name, "dtype": dtype, "size": size}]
        if not self.compiling and not self.cache.has(launch, target):
            return []
        return [_row(name, launch, self.cache.compiled(launch, target), target, dtype, size)]


def _row(name: str, launch: Launch, made: Compiled | None, target: str, dtype: str, size: int) -> dict[str, Any]:
    row: dict[str, Any] = {"kernel": name, "target": target, "dtype": dtype, "size": size, "key": launch.key(target)}
    sizes = {n: launch.arguments[n] for n in ("ROWS", "COLUMNS", "SLICES") if n in launch.arguments}
    row |= {"tile": sizes | {"warps": launch.options.get("num_warps", 4)}, "shared_limit": TARGETS[target]}
    if made is None:
        return row | {"failed": True}
    return row | {
        "registers": made.registers, "stack": made.stack, "spills": made.spills, "shared": made.shared,
        "tensor_cores": made.tensor_cores, "exponentials": made.instructions.get("MUFU", 0), "fits": made.fits(target),
    }  # fmt: skip


def _operation(name: str, found: list[Launch], target: str, dtype: str, dim: int) -> dict[str, Any]:
    size = Size(dim, DTYPES[dtype])
    moved, least = sum(map(work.bytes_moved, found)), work.least_bytes(name, size)
    (card,) = (card for card in work.CARDS.values() if card.target == target)
    return {
        "operation": name, "target": target, "dtype": dtype, "size": dim, "launches": len(found),
        "kernels": [launch.entry for launch in found], "bytes": moved, "least_bytes": least,
        "flops": sum(work.flops(launch, size) for launch in found),
        "milliseconds": sum(work.milliseconds(launch, size, dtype, card) for launch in found),
    }  # fmt: skip
