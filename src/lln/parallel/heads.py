"""Tensor parallelism: the heads of LLN layers split over a dimension of a device mesh.

Projections to q, k and v are cut by columns, so that each process has whole heads, and the one that joins them by rows, after
which outputs are added up (torch's `ColwiseParallel` and `RowwiseParallel`). alpha and beta are matched per head, so matching
needs no exchange; parameters per head are split with the heads.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh


def split_heads(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Split, in place, the heads of every LLN attention layer in `module`, and the feed-forward of its encoder layers.

    mesh: one dimension, whose size divides the numbers of heads and of key heads. Every process must have made the module with
    the same weights. Running statistics are refused: they are pooled over all processes, which here have different heads.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    found = [m for m in module.modules() if _is_attention(m)]
    if not found:
        raise ValueError(f"there is no LLN attention layer in this {type(module).__name__}")
    for layer in found:
        _check(layer, mesh.size())
    for layer in found:
        columns = {name: ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")}
        parallelize_module(layer, mesh, {**columns, "out_proj": RowwiseParallel()})
        _keep_own_heads(layer, mesh)
    for m in module.modules():
        if _is_attention(getattr(m, "self_attn", None)) and hasattr(m, "linear1"):
            parallelize_module(m, mesh, {"linear1": ColwiseParallel(), "linear2": RowwiseParallel()})
    return module


def _is_attention(m: Any) -> bool:
    return isinstance(m, nn.Module) and hasattr(m, "matcher") and hasattr(m, "num_key_heads") and hasattr(m, "out_proj")


def _check(layer: Any, size: int) -> None:
    if layer.num_heads % size or layer.num_key_heads % size:
        raise ValueError(
            f"{layer.num_heads} heads and {layer.num_key_heads} key heads cannot be split over {size} processes: "
            "their number must divide both"
        )
    if layer.matcher.running is not None:
        raise NotImplementedError(
            "running statistics are pooled over all processes, which have different heads once these are split: "
            "take matching='sample', 'fixed' or 'learnable'"
        )


def _keep_own_heads(layer: Any, mesh: DeviceMesh) -> None:
    size, rank, matcher = mesh.size(), mesh.get_local_rank(), layer.matcher
    for owner, name in (
        (matcher, "alpha"),
        (matcher, "beta"),
        (matcher, "log_alpha"),
        (matcher, "log_beta"),
        (layer, "mix_logit"),
    ):
        whole = getattr(owner, name, None)
        if isinstance(whole, nn.Parameter):
            setattr(owner, name, nn.Parameter(whole.detach().chunk(size)[rank].clone(), whole.requires_grad))
        elif isinstance(whole, torch.Tensor):
            setattr(owner, name, whole.chunk(size)[rank].clone())
    for owner in (layer, matcher):
        owner.num_heads //= size
        owner.num_key_heads //= size
