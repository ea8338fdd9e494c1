"""Weights of torch.nn.MultiheadAttention for the layers that replace it.

torch keeps the three projections in one matrix, in_proj_weight (3E, E), or in q_proj_weight and so on where
keys and values have sizes of their own. The layers here have a linear map for each.
"""

from typing import Any

from torch import Tensor, nn

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def layers_names(state_dict: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """What of a state dict belongs to torch's module at `prefix`, under the names of the layers here; empty if nothing does."""
    found: dict[str, Tensor] = {}
    for torchs, own in (("in_proj_weight", "weight"), ("in_proj_bias", "bias")):
        joined = state_dict.get(prefix + torchs)
        if joined is not None:
            found |= {f"{name}.{own}": part for name, part in zip(_PROJECTIONS, joined.chunk(3), strict=True)}
    for name in _PROJECTIONS:
        if f"{prefix}{name}_weight" in state_dict:
            found[f"{name}.weight"] = state_dict[f"{prefix}{name}_weight"]
    return found


def load_torchs_names(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before a layer loads: a state dict of torch's module is renamed, and what torch does not have stays as it is here."""
    found = layers_names(state_dict, prefix)
    if not found:
        return
    for name in list(state_dict):
        if name.startswith(prefix) and name.removeprefix(prefix) in _TORCHS:
            del state_dict[name]
    state_dict.update({prefix + name: x for name, x in found.items()})
    for name, x in module.state_dict().items():
        if not name.startswith((*_PROJECTIONS, "out_proj")):
            state_dict.setdefault(prefix + name, x)


def arguments_of(mha: nn.MultiheadAttention) -> dict[str, Any]:
    """The arguments of a layer that replaces `mha`; refused if that adds keys of its own."""
    if not isinstance(mha, nn.MultiheadAttention):
        raise TypeError(f"from_torch takes a torch.nn.MultiheadAttention, got {type(mha).__name__}")
    if mha.bias_k is not None or mha.add_zero_attn:
        raise ValueError(
            "this nn.MultiheadAttention adds keys of its own (add_bias_kv or add_zero_attn), which the layers here do not"
        )
    weight = mha.out_proj.weight
    return {
        "embed_dim": mha.embed_dim, "num_heads": mha.num_heads, "dropout": mha.dropout,
        "bias": mha.in_proj_bias is not None, "kdim": mha.kdim, "vdim": mha.vdim, "batch_first": mha.batch_first,
        "device": weight.device, "dtype": weight.dtype,
    }  # fmt: skip


_TORCHS = {"in_proj_weight", "in_proj_bias", *(f"{name}_weight" for name in _PROJECTIONS)}
