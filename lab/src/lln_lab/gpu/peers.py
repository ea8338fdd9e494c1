"""The kernels of fla-core for causal linear attention in chunks (`chunk_simple_gla`, `chunk_linear_attn`), compiled alike.

Its kernels have many configurations, of which it picks one by timing. Without a GPU the widest tile with four warps is taken.
LLN needs features and a normaliser besides, which its kernels do not make: a pass that reads q and k and writes their features,
one more column of values, states and outputs for the normaliser, and a pass that divides. Both are counted in bytes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch

from lln_lab.gpu import work
from lln_lab.gpu.compiling import Launch, caught
from lln_lab.gpu.launches import DTYPES, Size

MISSING = "fla-core is not installed: pip install --no-deps fla-core"


def sheet(
    targets: tuple[str, ...],
    dtypes: tuple[str, ...],
    sizes: tuple[int, ...],
    rows_of: Callable[[str, Launch, str, str, int], list[dict[str, Any]]],
    told: Callable[[str, int], None],
) -> dict[str, Any]:
    if find_spec("fla") is None:
        return {"kernels": [], "operations": [], "missing": MISSING}
    kernels, operations = [], []
    for dtype in dtypes:
        for dim in sizes:
            size = Size(dim, DTYPES[dtype])
            for name, found in launches(size).items():
                for target in targets:
                    for launch in found:
                        told(f"fla-core {target} {dtype} {dim} {launch.name}", 0)
                        kernels += rows_of(launch.name, launch, target, dtype, dim)
                    operations.append(_operation(name, found, target, dtype, size))
    return {"kernels": kernels, "operations": operations, "version": version("fla-core")}


def launches(size: Size) -> dict[str, list[Launch]]:
    """Of a forward and a backward pass without a gate, as `chunk_linear_attn` and `chunk_simple_gla` launch them."""
    from fla.ops.simple_gla.chunk import chunk_simple_gla_bwd, chunk_simple_gla_fwd

    shape = (size.batch, size.length, size.heads, size.dim)
    q, k, v, do = (torch.empty(shape, dtype=size.dtype, device="meta") for _ in range(4))
    with _without_timing(), caught() as forward:
        chunk_simple_gla_fwd(q, k, v, scale=1.0)
    with _without_timing(), caught() as backward:
        chunk_simple_gla_bwd(q, k, v, None, None, None, do, None, 1.0)
    return {"fla, causal forward": list(forward), "fla, causal backward": list(backward)}


@contextmanager
def _without_timing() -> Iterator[None]:
    from triton.runtime.autotuner import Autotuner

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        def preference(config: Any) -> tuple[bool, int, bool]:
            return (
                config.num_warps == 4,
                sum(v for v in config.kwargs.values() if isinstance(v, int)),
                config.num_stages == 2,
            )

        best = max(tuner.configs, key=preference)
        return tuner.fn.run(*args, **kwargs, **best.kwargs, num_warps=best.num_warps, num_stages=best.num_stages)

    before, Autotuner.run = Autotuner.run, run
    try:
        yield
    finally:
        Autotuner.run = before


def _operation(name: str, found: list[Launch], target: str, dtype: str, size: Size) -> dict[str, Any]:
    own = sum(map(work.bytes_moved, found))
    tensor = size.batch * size.heads * size.length * size.dim * size.dtype.itemsize
    passes = 4 + 2  # q and k read, their features written; the output read and written where it is divided
    if name.endswith("backward"):
        passes = (
            6 + 3
        )  # q, k and the features' gradients read, dq and dk written; out and its gradient read, that of it written
    moved = own * (1 + 1 / size.dim) + passes * tensor
    (card,) = (card for card in work.CARDS.values() if card.target == target)
    return {
        "operation": name, "target": target, "dtype": dtype, "size": size.dim, "launches": len(found),
        "kernels": [launch.name for launch in found], "bytes": own, "bytes_with_features": moved,
        "milliseconds": 1e3 * own / (1e12 * card.terabytes_per_second),
        "milliseconds_with_features": 1e3 * moved / (1e12 * card.terabytes_per_second),
    }  # fmt: skip
