"""What the machine can do at most, measured: multiply-adds in a large matrix product, bytes in a large copy."""

import time
from collections.abc import Callable
from typing import Any

import torch


def _fastest(function: Callable[[], Any], repeats: int) -> float:
    function()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return min(taken)


def limits(repeats: int = 15) -> dict[str, float]:
    """GFLOP/s of a 1,024^3 float32 product and GB/s (read and written) of copying 128 MiB, each the best of `repeats`."""
    size, x = 1024, torch.randn(1024, 1024)
    product = torch.empty_like(x)
    source = torch.zeros(1 << 25)
    target = torch.zeros_like(source)
    return {
        "gflops": 2e-9 * size**3 / _fastest(lambda: torch.mm(x, x, out=product), repeats),
        "gigabytes_per_second": 2e-9 * source.nbytes / _fastest(lambda: target.copy_(source), repeats),
    }


def achieved(seconds: float, heads: int, length: int, dim: int, backward: bool) -> dict[str, float]:
    """The rate of the products alone, 2 forward and 4 more backward, and of reading inputs and writing results once.

    Forward: q, k, v and out. Backward: these again except out, its gradient, and dq, dk, dv.
    """
    flops = 2 * heads * length * dim * dim * (6 if backward else 2)
    bytes_moved = 4 * heads * length * dim * (11 if backward else 4)
    return {"gflops": 1e-9 * flops / seconds, "gigabytes_per_second": 1e-9 * bytes_moved / seconds}
