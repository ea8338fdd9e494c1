"""A map of q and k that softmax does not see, written into the projections: q' = q M^-T, k' = k M, so q' . k' = q . k."""

import torch
from torch import Tensor, nn

_PROJECTIONS = (("query", "key"), ("q_proj", "k_proj"), ("q_lin", "k_lin"))


@torch.no_grad()
def fold_into_projections(module: nn.Module, matrix: Tensor) -> None:
    """Multiply the projections of an attention module by M (Hk, D, D) in float64, and by what follows from it for q."""
    query, key = projections(module)
    _multiply(query, query_matrix(matrix, query.out_features // matrix.shape[-1]))
    _multiply(key, matrix)


def query_matrix(matrix: Tensor, heads: int) -> Tensor:
    """M^-T for every query head, (Hq, D, D) in float64."""
    return torch.linalg.inv(matrix.double()).mT.repeat_interleave(heads // len(matrix), dim=0)


def projections(module: nn.Module) -> tuple[nn.Linear, nn.Linear]:
    """The linear layers that make q and k of an attention module."""
    for names in _PROJECTIONS:
        found = [getattr(module, name, None) for name in names]
        if all(isinstance(layer, nn.Linear) for layer in found):
            return found[0], found[1]  # type: ignore[return-value]
    raise ValueError(
        f"{type(module).__name__} has no separate linear projections of q and k that are known here "
        f"({', '.join(' and '.join(names) for names in _PROJECTIONS)}): its maps cannot be folded; use maps='free'"
    )


def _multiply(layer: nn.Linear, maps: Tensor) -> None:
    """x W^T + b -> (x W^T + b) A, head by head; maps (H, D, D)."""
    heads, dim, _ = maps.shape
    weight = layer.weight.double().view(heads, dim, -1)
    layer.weight.copy_((maps.mT @ weight).flatten(0, 1))
    if layer.bias is not None:
        layer.bias.copy_((layer.bias.double().view(heads, 1, dim) @ maps).flatten())
