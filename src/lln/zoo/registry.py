"""The registry. A member is one file in `lln/zoo/members`; adding one changes no other file of the library."""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from lln.zoo.card import Card, refuse_unsupported
from lln.zoo.mechanism import Mechanism, Shape, check
from lln.zoo.multihead import MultiHead

M = TypeVar("M", bound=type[nn.Module])


class Options(Protocol):
    """A dataclass: every member has its own."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


@dataclass(frozen=True)
class Member:
    card: Card
    options: type[Options]
    make: type[nn.Module]
    layer_options: Callable[[int, int], dict[str, Any]] | None = None


_members: dict[str, Member] = {}


def register(
    card: Card, options: type[Options], layer_options: Callable[[int, int], dict[str, Any]] | None = None
) -> Callable[[M], M]:
    """Class decorator. `layer_options(layer, layers)` gives the options that differ from layer to layer, if any do."""

    def add(make: M) -> M:
        if card.name in _members:
            raise ValueError(f"the zoo already has a member named {card.name!r}")
        _members[card.name] = Member(card, options, make, layer_options)
        return make

    return add


@functools.cache
def _load() -> None:
    package = importlib.import_module("lln.zoo.members")
    for found in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{found.name}")


def member(name: str) -> Member:
    _load()
    if name not in _members:
        raise ValueError(f"the zoo has no member {name!r}; it has: {', '.join(names())}")
    return _members[name]


def names() -> list[str]:
    """The names of all members, sorted."""
    _load()
    return sorted(_members)


def card(name: str) -> Card:
    """What the member is and what it supports."""
    return member(name).card


def options(name: str, **given: Any) -> Options:
    """The member's options, with the paper's defaults. Unknown names raise ValueError."""
    kind = member(name).options
    known = [field.name for field in dataclasses.fields(kind)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        has = f"it has: {', '.join(known)}" if known else "it has none"
        raise TypeError(f"{name} has no option {', '.join(map(repr, unknown))}; {has}")
    return kind(**given)


def build(name: str, *, embed_dim: int, num_heads: int, max_length: int, **given: Any) -> nn.Module:
    """A layer that maps x (B, N, E) and key_mask (B, N), False for masked keys, to (B, N, E), for N up to `max_length`."""
    found, chosen = member(name), options(name, **given)
    shape = Shape(embed_dim, num_heads, max_length)
    if issubclass(found.make, Mechanism):
        return MultiHead(found.make(chosen, shape), shape, found.card)
    return found.make(chosen, shape)


def layer_options(name: str, layer: int, layers: int) -> dict[str, Any]:
    """The options of layer number `layer` of `layers` that the member's paper prescribes, where it mixes two kinds."""
    chosen = member(name).layer_options
    return chosen(layer, layers) if chosen is not None else {}


def attention(name: str, *, max_length: int | None = None, **given: Any) -> Callable[..., Tensor]:
    """The member as a function of q (B, H, Nq, D), k (B, H, Nk, D), v (B, H, Nk, Dv) and masks.

    Random features, if any, belong to the function: they are the same for every length, dtype and device. A seed of None is
    drawn once, here, from torch's global generator. `max_length` is the length of the longest input; without it, cosFormer
    and Reformer use the number of tokens of each sample. Without `query_mask`, equal numbers of queries and keys are assumed
    to be one sequence.
    """
    found, chosen = member(name), options(name, **given)
    if found.card.learned or not issubclass(found.make, Mechanism):
        raise ValueError(_not_a_function(name))
    if getattr(chosen, "seed", 0) is None:
        chosen = dataclasses.replace(chosen, seed=int(torch.randint(2**31, ())))

    @functools.lru_cache(maxsize=8)  # made anew it is the same: the seed is given
    def made(heads: int, head_dim: int, device: torch.device) -> Mechanism:
        mechanism: Any = found.make(chosen, Shape(heads * head_dim, heads, max_length))
        if next(mechanism.parameters(), None) is not None:
            raise ValueError(_not_a_function(name))
        kept: Mechanism = mechanism.to(device)  # not to a dtype: members round their features where they use them
        return kept

    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        check(q, k, v, key_mask, query_mask)
        refuse_unsupported(found.card, is_causal, q.shape[2] != k.shape[2])
        mechanism = made(q.shape[1], q.shape[3], q.device)
        out: Tensor = mechanism(q, k, v, key_mask, query_mask, is_causal)
        return out

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{found.card.title}: {found.card.equation} ({found.card.reference})"
    return call


def _not_a_function(name: str) -> str:
    functions = [n for n in names() if not card(n).learned]
    return (
        f"{name} with these options has learned weights, so it is not a function of q, k and v: "
        f"use lln.zoo.build({name!r}, ...). Functions are: {', '.join(functions)}"
    )
