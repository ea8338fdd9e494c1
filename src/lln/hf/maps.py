"""Linear maps of q and k in a converted model: making room for them, tying them, folding them into the projections.

    free    q' = q A_q, k' = k A_k          seen by LLN only; one more D x D product for q and one for k
    folded  q' = q M^-T, k' = k M           q' . k' = q . k: softmax does not see it, so M goes into the projections

A folded map costs nothing at run time. Query heads that share a key head share its M.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lln.hf.modules import attention_modules, named_attention_modules
from lln.hf.options import LayerShape, LLNOptions
from lln.hf.parameters import LLNParameters

KINDS = ("free", "folded", None)
_PROJECTIONS = (("query", "key"), ("q_proj", "k_proj"), ("q_lin", "k_lin"))


class TiedParameters(LLNParameters):
    """While folded maps are learned: key_map (Hk, D, D) is M, and the map of the queries follows from it, M^-T."""

    def map_queries(self, q: Tensor) -> Tensor:
        assert self.key_map is not None
        inverse = torch.linalg.inv(self.key_map.double()).mT.to(q.dtype)  # (Hk, D, D)
        return q @ inverse.repeat_interleave(self.shape.heads // self.shape.key_heads, dim=0)


def converted_modules(model: nn.Module) -> list[Any]:
    """The attention modules that have LLN parameters of their own."""
    return [m for m in attention_modules(model) if getattr(m, "lln", None) is not None]


def make_room(model: Any, maps: str | None, per_feature: bool = True) -> None:
    """Give every converted module alpha and beta per feature and, if asked for, maps that start as identities.

    Maps that are there already are kept; the function the model computes stays the same.
    """
    if maps not in KINDS:
        raise ValueError(f"maps must be 'free', 'folded' or None, got {maps!r}")
    if maps == "folded":
        refuse_unfoldable(model)
    for module in converted_modules(model):
        own = module.lln
        shape = replace(
            own.shape, maps=maps is not None or own.shape.maps, per_feature=per_feature or own.shape.per_feature
        )
        _swap(module, shape, TiedParameters if maps == "folded" else LLNParameters)
    _describe(model)


@torch.no_grad()
def fold(model: Any) -> None:
    """Write tied maps into the projections of q and k and take them away: the same function, at the cost without maps."""
    for module in converted_modules(model):
        own = module.lln
        if not isinstance(own, TiedParameters):
            continue
        assert own.key_map is not None
        matrix = own.key_map.double()
        groups = own.shape.heads // own.shape.key_heads
        query, key = projections(module)
        _multiply(query, torch.linalg.inv(matrix).mT.repeat_interleave(groups, dim=0))
        _multiply(key, matrix)
        _swap(module, replace(own.shape, maps=False), LLNParameters)
    _describe(model)


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


def refuse_unfoldable(model: Any) -> None:
    """Between the projection and the product of q and k nothing may happen: no rotary positions, no norm of q and k."""
    for name, module in named_attention_modules(model).items():
        parameters: LLNParameters | None = getattr(module, "lln", None)
        if parameters is None:
            continue
        if parameters.shape.maps:
            raise ValueError(f"{name} has free maps already: maps='folded' needs a model without them")
        if getattr(module, "q_norm", None) is not None:
            raise ValueError(f"{name} normalises q and k after projecting them: maps='folded' would change softmax")
        projections(module)
    config = model.config
    if getattr(config, "rope_theta", None) or getattr(config, "rope_parameters", None):
        raise ValueError(
            f"{type(model).__name__} rotates q and k by their position after projecting them, so that only rotations and "
            "scalings of each frequency could be folded: use maps='free'"
        )


def _multiply(layer: nn.Linear, maps: Tensor) -> None:
    """x W^T + b -> (x W^T + b) A, head by head; maps (H, D, D)."""
    heads, dim, _ = maps.shape
    weight = layer.weight.double().view(heads, dim, -1)
    layer.weight.copy_((maps.mT @ weight).flatten(0, 1))
    if layer.bias is not None:
        layer.bias.copy_((layer.bias.double().view(heads, 1, dim) @ maps).flatten())


def _swap(module: Any, shape: LayerShape, kind: type[LLNParameters]) -> None:
    before = module.lln
    after = kind(shape).to(before.alpha.device)
    values = {name: x for name, x in before.named_parameters() if name in dict(after.named_parameters())}
    after.set(**values)
    after.fit_error = before.fit_error
    module.lln = after


def _describe(model: Any) -> None:
    """config.lln says what is attached, so that a saved model finds its place again."""
    options = LLNOptions.from_dict(model.config.lln)
    attached: list[LLNParameters | None] = [getattr(module, "lln", None) for module in attention_modules(model)]
    layers = [None if parameters is None else parameters.shape for parameters in attached]
    model.config.lln = replace(options, layers=layers).to_dict()
