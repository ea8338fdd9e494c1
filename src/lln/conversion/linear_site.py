"""A linear attention in place of a softmax attention: what a converted module calls instead of `scaled_dot_product_attention`.

Queries and keys of one sequence go through near-far attention (docs/near-far.md). In cross-attention no key is near: the keys
are a set, known by its moments (`lln.conversion.sets`).
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lln.attention import lln_attention
from lln.conversion.call import AttentionCall, CannotReplace, read_call, sdpa_arguments
from lln.conversion.parameters import LayerShape, LLNParameters
from lln.conversion.sets import set_attention
from lln.conversion.sites import SDPA
from lln.near_far import near_far_attention

NEAR_FAR = "lln_near_far"


@dataclass(frozen=True)
class SiteOptions:
    """What is near, and what was seen of the masks when the model was watched."""

    shape: LayerShape
    block_size: int = 64
    neighbours: int = 0
    first_tokens: int = 0
    causal: bool = False
    cross: bool = False
    attention: str = NEAR_FAR  # or a member of the zoo
    of_member: dict[str, Any] = field(default_factory=dict)  # its options
    moments: bool = False  # in cross-attention beside LLN; files of earlier releases had LLN alone
    longest: int | None = None  # the longest input, for members that have weights for every position

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(given: dict[str, Any]) -> "SiteOptions":
        return SiteOptions(**{**given, "shape": LayerShape(**given["shape"])})


class AnySite(nn.Module):
    """Answers the calls of one site; called as `scaled_dot_product_attention` is."""

    def __init__(self, options: SiteOptions) -> None:
        super().__init__()
        self.options = options

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        given = sdpa_arguments(*args, **kwargs)
        query: Tensor = given["query"]
        # A mask is what it was when the model was watched, where looking at it would wait for a device or break a graph.
        if not query.is_cpu or torch.compiler.is_compiling():
            call = read_call(**{**given, "is_causal": self.options.causal}, look=False)
        else:
            call = read_call(**given)
        return call.shaped(self.attend(call))

    def attend(self, call: AttentionCall) -> Tensor:
        self._check(call)
        out = self._attend(call)
        return F.dropout(out, call.dropout) if call.dropout > 0 else out

    def _attend(self, call: AttentionCall) -> Tensor:
        raise NotImplementedError

    def _check(self, call: AttentionCall) -> None:
        shape, queries, keys = self.options.shape, call.q.shape[2], call.k.shape[2]
        if self.options.causal and not self.options.cross and queries < keys:
            raise CannotReplace(
                f"{queries} queries for {keys} keys: a cache of all keys, where a causal linear attention has a state"
            )
        if call.causal != self.options.causal:
            now, then = ("causal", "bidirectional") if call.causal else ("bidirectional", "causal")
            raise CannotReplace(f"attention is {now} here, but was {then} when the model was converted")
        if call.cross and not self.options.cross:
            raise CannotReplace(
                f"{queries} queries for {keys} keys; when the model was converted there were as many of both"
            )
        if (call.q.shape[1], call.k.shape[1], call.q.shape[3]) != (shape.heads, shape.key_heads, shape.head_dim):
            raise CannotReplace(
                f"{call.q.shape[1]} heads of {call.q.shape[3]}; when the model was converted there were {shape.heads} of "
                f"{shape.head_dim}"
            )


class LinearSite(AnySite):
    """Near-far attention, with parameters of its own for each head."""

    def __init__(self, options: SiteOptions) -> None:
        super().__init__(options)
        self.parameters_of_heads = LLNParameters(options.shape)

    def _attend(self, call: AttentionCall) -> Tensor:
        own = self.parameters_of_heads
        alpha, beta, bias = own.for_attention(call.q.dtype if call.q.dtype.itemsize > 4 else own.alpha.dtype)
        if self.options.cross and self.options.moments:
            return set_attention(call, own)
        if self.options.cross:
            return lln_attention(call.q, call.k, call.v, alpha, beta, feature_bias=bias, key_mask=call.key_mask)
        return near_far_attention(
            call.q, call.k, call.v, alpha, beta, weights=own.weights, feature_bias=bias, key_mask=call.key_mask,
            is_causal=call.causal, scale=call.scale, **self.near,
        )  # fmt: skip

    @property
    def near(self) -> dict[str, Any]:
        """What is near, as `near_far_attention` takes it."""
        o = self.options
        return {"block_size": o.block_size, "neighbours": o.neighbours, "first_tokens": o.first_tokens}


class Rerouted(TorchFunctionMode):
    """Inside, the calls of `scaled_dot_product_attention` go to the sites, in order; None leaves a call as it is."""

    def __init__(self, place: str, sites: list[AnySite | None]) -> None:
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
