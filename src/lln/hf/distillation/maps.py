"""Linear maps of q and k in a converted model: making room for them, tying them, folding them into the projections.

    free    q' = q A_q, k' = k A_k          seen by LLN only; one more D x D product for q and one for k
    folded  q' = q M^-T, k' = k M           q' . k' = q . k: softmax does not see it, so M goes into the projections

A folded map costs nothing at run time. Query heads that share a key head share its M. Where rotary positions turn the pair of
features of each frequency after the projection, M must commute with every turn: a rotation and a scaling of each pair.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lln.conversion.parameters import LayerShape, LLNParameters
from lln.hf.conversion.attach import describe
from lln.hf.conversion.folding import fold_into_projections, projections, query_matrix
from lln.hf.modules import attention_modules, named_attention_modules
from lln.hf.options import options_of

KINDS = ("free", "folded", None)


class TiedParameters(LLNParameters):
    """While folded maps are learned: key_map (Hk, D, D) is M, and the map of the queries follows from it, M^-T."""

    def matrix(self) -> Tensor:
        """M (Hk, D, D)."""
        assert self.key_map is not None
        return self.key_map

    def query_matrix(self) -> Tensor:
        """M^-T for every query head, (Hq, D, D) in float64."""
        return query_matrix(self.matrix(), self.shape.heads)

    def map_queries(self, q: Tensor) -> Tensor:
        return q @ self.query_matrix().to(q.dtype)

    def map_keys(self, k: Tensor) -> Tensor:
        return k @ self.matrix().to(k.dtype)


class RotaryTiedParameters(TiedParameters):
    """For keys whose features l and l + D/2 are turned by their position: M is key_map's part that commutes with turns.

    (k_l, k_{l + D/2}) [[a, b], [-b, a]] with a_l and b_l: the product of complex numbers (k_l + i k_{l + D/2}) (a + i b).
    """

    def matrix(self) -> Tensor:
        assert self.key_map is not None
        half = self.shape.head_dim // 2
        (a, b), (c, d) = (
            [block.diagonal(0, -2, -1) for block in rows.split(half, -1)] for rows in self.key_map.split(half, -2)
        )
        scale, turn = torch.diag_embed((a + d) / 2), torch.diag_embed((b - c) / 2)
        return torch.cat([torch.cat([scale, turn], dim=-1), torch.cat([-turn, scale], dim=-1)], dim=-2)


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
    kind = LLNParameters if maps != "folded" else RotaryTiedParameters if _is_rotary(model) else TiedParameters
    for module in converted_modules(model):
        own = module.lln
        shape = replace(
            own.shape, maps=maps is not None or own.shape.maps, per_feature=per_feature or own.shape.per_feature
        )
        _swap(module, shape, kind)
    describe(model, options_of(model.config))


def put_back(model: Any, parameters: Mapping[Any, LLNParameters]) -> None:
    """Undo `make_room`: every module has these parameters again."""
    for module, own in parameters.items():
        module.lln = own
    describe(model, options_of(model.config))


@torch.no_grad()
def fold(model: Any) -> None:
    """Write tied maps into the projections of q and k and take them away: the same function, at the cost without maps."""
    for module in converted_modules(model):
        own = module.lln
        if not isinstance(own, TiedParameters):
            continue
        fold_into_projections(module, own.matrix().double())
        _swap(module, replace(own.shape, maps=False), LLNParameters)
    describe(model, options_of(model.config))


def refuse_unfoldable(model: Any) -> None:
    """Between the projection and the product of q and k nothing but rotary positions may happen: no norm of q and k."""
    for name, module in named_attention_modules(model).items():
        parameters: LLNParameters | None = getattr(module, "lln", None)
        if parameters is None:
            continue
        if parameters.shape.maps:
            raise ValueError(f"{name} has free maps already: maps='folded' needs a model without them")
        if getattr(module, "q_norm", None) is not None:
            raise ValueError(f"{name} normalises q and k after projecting them: maps='folded' would change softmax")
        projections(module)
        if _is_rotary(model) and not _turns_halves(module):
            raise ValueError(
                f"{name} rotates q and k in another way than by turning each feature with the one D / 2 further on, for "
                "which no foldable maps are known here: use maps='free'"
            )


def _is_rotary(model: Any) -> bool:
    return any(getattr(model.config, name, None) for name in ("rope_theta", "rope_parameters"))


def _turns_halves(module: nn.Module) -> bool:
    """Whether the model's own code turns feature l with feature l + D/2, and all of them."""
    rotate = getattr(sys.modules[type(module).__module__], "rotate_half", None)
    rope = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
    if rotate is None or rope.get("partial_rotary_factor", 1.0) != 1.0:
        return False
    return bool(torch.equal(rotate(torch.arange(4.0)), torch.tensor([-2.0, -3.0, 0.0, 1.0])))


def _swap(module: Any, shape: LayerShape, kind: type[LLNParameters]) -> None:
    before = module.lln
    after = kind(shape).to(before.alpha.device)
    values = {name: x for name, x in before.named_parameters() if name in dict(after.named_parameters())}
    after.set(**values)
    after.fit_error = before.fit_error
    module.lln = after
