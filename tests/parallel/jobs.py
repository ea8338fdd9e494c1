"""What the processes of the pool are asked to do."""

from typing import Any

import torch
from torch import Tensor

import lln.parallel
from lln.ops.blocks import blocks
from lln.ops.diag import diag
from lln.ops.lln import attention
from lln.ops.stretches import held_by, own_boundaries
from lln.parallel.context import processes_of

OPERATIONS = {"attention": attention, "blocks": blocks, "diag": diag}
_kept: dict[str, Any] = {}


def forward(group: Any, payload: dict[str, Any]) -> list[Tensor]:
    """An operation on this stretch; what it was computed from stays here for `backward`."""
    operation, x = OPERATIONS[payload["operation"]], payload["operands"]
    with lln.parallel.context_parallel(group):
        if x.cu_seqlens is not None:
            x = x._replace(cu_seqlens=own_boundaries(x.cu_seqlens, x.k.shape[2]))
        leaves = {n: getattr(x, n).requires_grad_() for n in payload["differentiable"]}
        results = operation(x._replace(**leaves), payload["backend"])
    wanted = [getattr(results, name) for name in payload["results"]]
    _kept.update(leaves=leaves, results=wanted)
    return [t.detach() for t in wanted]


def backward(group: Any, grads: list[Tensor]) -> dict[str, Tensor]:
    """Gradients of the leaves of the last `forward`, by name."""
    leaves = _kept.pop("leaves")
    found = torch.autograd.grad(_kept.pop("results"), list(leaves.values()), grads, allow_unused=True)
    return {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(leaves, found, strict=True)}


def processes(group: Any) -> Any:
    return held_by(processes_of(group))
