"""An operation computed by several processes, each with a stretch, as one function that autograd sees."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tests.parallel.pool import Pool

OF_QUERIES, OF_KEYS, OF_BOTH = ("q", "lln_q", "weight"), ("k", "v", "lln_k", "key_mask"), ("cu_seqlens",)


def drawn_cuts(length: int, size: int, seed: int) -> list[int]:
    """Where `length` tokens are cut for `size` processes; some stretches may be empty."""
    generator = torch.Generator().manual_seed(seed)
    inner = torch.randint(0, length + 1, (size - 1,), generator=generator).sort().values.tolist()
    return [0, *inner, length]


def stretch(name: str, x: Any, first: int, last: int) -> Any:
    """Of an operand called `name`: what a process with the tokens from `first` to `last` has of it."""
    if not isinstance(x, Tensor) or name not in OF_QUERIES + OF_KEYS:
        return x
    dim = 1 if name == "key_mask" else 2
    if name == "weight" and x.shape[2] == 1:
        return x
    return x.narrow(dim, first, last - first)


def over(pool: Pool, operation: str, x: Any, backend: str, query_cuts: list[int], key_cuts: list[int]) -> Tensor:
    """The output of an operation on operands `x`, each process having what lies between two cuts."""
    names = [n for n, t in zip(x._fields, x, strict=True) if isinstance(t, Tensor) and t.requires_grad]
    out: Tensor = _Over.apply(pool, operation, x, backend, query_cuts, key_cuts, names, *(getattr(x, n) for n in names))
    return out


class _Over(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        pool: Pool,
        operation: str,
        x: Any,
        backend: str,
        query_cuts: Any,
        key_cuts: Any,
        names: Any,
        *_: Tensor,
    ) -> Tensor:
        ctx.pool, ctx.names, ctx.x, ctx.query_cuts, ctx.key_cuts = pool, names, x, query_cuts, key_cuts
        payloads = []
        for queries, keys in zip(pairwise(query_cuts), pairwise(key_cuts), strict=True):
            parts = {
                name: stretch(name, t, *(queries if name in OF_QUERIES else keys))
                for name, t in zip(x._fields, x, strict=True)
            }
            own = type(x)(**{n: t.detach().clone() if isinstance(t, Tensor) else t for n, t in parts.items()})
            payloads.append({
                "operation": operation, "operands": own, "backend": backend, "differentiable": names, "results": ["out"],
            })  # fmt: skip
        return torch.cat([found[0] for found in pool.run("forward", payloads)], dim=2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        pieces = [[grads[0][:, :, a:b].clone()] for a, b in pairwise(ctx.query_cuts)]
        found = ctx.pool.run("backward", pieces)
        return (None,) * 7 + tuple(_joined(name, getattr(ctx.x, name), [f[name] for f in found]) for name in ctx.names)


def _joined(name: str, whole: Tensor, parts: list[Tensor]) -> Tensor:
    """Stretches one after the other; of what every process has, the sum of their parts."""
    if name in OF_QUERIES + OF_KEYS and not (name == "weight" and whole.shape[2] == 1):
        return torch.cat(parts, dim=2)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
