"""A linear attention in place of a softmax attention: what a converted module calls instead of `scaled_dot_product_attention`.

Queries and keys of one sequence go through near-far attention (docs/near-far.md). In cross-attention no key is near: it goes
through LLN alone (eq. 8).
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lln.attention import lln_attention
from lln.conversion.call import AttentionCall, CannotReplace, read_call, sdpa_arguments
from lln.conversion.parameters import LayerShape, LLNParameters
from lln.conversion.sites import SDPA
from lln.near_far import near_far_attention


@dataclass(frozen=True)
class SiteOptions:
    """What is near, and what was seen of the masks when the model was watched."""

    shape: LayerShape
    block_size: int = 64
    neighbours: int = 0
    first_tokens: int = 0
    causal: bool = False
    cross: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(given: dict[str, Any]) -> "SiteOptions":
        return SiteOptions(**{**given, "shape": LayerShape(**given["shape"])})


class LinearSite(nn.Module):
    """Answers the calls of one site; called as `scaled_dot_product_attention` is."""

    def __init__(self, options: SiteOptions) -> None:
        super().__init__()
        self.options = options
        self.parameters_of_heads = LLNParameters(options.shape)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        given = sdpa_arguments(*args, **kwargs)
        query: Tensor = given["query"]
        if (
            not query.is_cpu
        ):  # looking at a mask would wait for the device: it is what it was when the model was watched
            call = read_call(**{**given, "is_causal": self.options.causal}, look=False)
        else:
            call = read_call(**given)
        return call.shaped(self.attend(call))

    def attend(self, call: AttentionCall) -> Tensor:
        self._check(call)
        own = self.parameters_of_heads
        alpha, beta, bias = own.for_attention(call.q.dtype if call.q.dtype.itemsize > 4 else own.alpha.dtype)
        if self.options.cross:
            out = lln_attention(call.q, call.k, call.v, alpha, beta, feature_bias=bias, key_mask=call.key_mask)
        else:
            out = near_far_attention(
                call.q, call.k, call.v, alpha, beta, weights=own.weights, feature_bias=bias, key_mask=call.key_mask,
                is_causal=call.causal, scale=call.scale, **self.near,
            )  # fmt: skip
        return F.dropout(out, call.dropout) if call.dropout > 0 else out

    @property
    def near(self) -> dict[str, Any]:
        """What is near, as `near_far_attention` takes it."""
        o = self.options
        return {"block_size": o.block_size, "neighbours": o.neighbours, "first_tokens": o.first_tokens}

    def _check(self, call: AttentionCall) -> None:
        shape = self.options.shape
        if call.causal != self.options.causal:
            now, then = ("causal", "bidirectional") if call.causal else ("bidirectional", "causal")
            raise CannotReplace(f"attention is {now} here, but was {then} when the model was converted")
        if call.cross and not self.options.cross:
            raise CannotReplace(
                f"{call.q.shape[2]} queries for {call.k.shape[2]} keys; when the model was converted there were as many of both"
            )
        if (call.q.shape[1], call.k.shape[1], call.q.shape[3]) != (shape.heads, shape.key_heads, shape.head_dim):
            raise CannotReplace(
                f"{call.q.shape[1]} heads of {call.q.shape[3]}; when the model was converted there were {shape.heads} of "
                f"{shape.head_dim}"
            )


class Rerouted(TorchFunctionMode):
    """Inside, the calls of `scaled_dot_product_attention` go to the sites, in order; None leaves a call as it is."""

    def __init__(self, place: str, sites: list[LinearSite | None]) -> None:
        super().__init__()
        self.place, self.sites, self.number = place, sites, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not SDPA:
            return func(*args, **(kwargs or {}))
        number, self.number = self.number, self.number + 1
        if number >= len(self.sites):
            raise ValueError(
                f"{self.place} computes attention {number + 1} times in a pass; when it was converted, {len(self.sites)}: "
                "convert it on inputs like those it runs on"
            )
        site = self.sites[number]
        if site is None:
            return func(*args, **(kwargs or {}))
        try:
            return site(*args, **(kwargs or {}))
        except CannotReplace as reason:
            raise ValueError(f"{self.place}: {reason}") from None
