"""Linear attentions as part of the modules of a model: put in, found again, resting while softmax is wanted, taken out."""

import functools
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from lln.conversion.linear_site import AnySite, Rerouted
from lln.conversion.modes import marked
from lln.conversion.sites import named
from lln.conversion.torch_attention import put

NAME = "lln_sites"  # the attribute of a converted module that holds its sites
RESTING = "_lln_rests"  # and the one that says that it computes softmax for the time being
BEFORE = "_lln_before"  # of a converted model: torch's modules that it had


def install_all(
    model: nn.Module, sites: Mapping[str, list[AnySite | None]], before: dict[str, nn.MultiheadAttention]
) -> None:
    """Give modules their sites, by path. before: torch's own modules that were opened; those without sites close again."""
    for path, own in sites.items():
        install(model.get_submodule(path), path, own)
    model.__dict__[BEFORE] = before
    close_unused(model)


def close_unused(model: nn.Module) -> None:
    """Torch's own module in each place where one was opened and has no sites."""
    before: dict[str, nn.MultiheadAttention] = model.__dict__[BEFORE]
    for path in [path for path in before if not hasattr(model.get_submodule(path), NAME)]:
        put(model, path, before.pop(path))


def install(module: nn.Module, path: str, sites: list[AnySite | None]) -> None:
    """Give a module its sites, and a forward pass whose attention goes through them."""
    module.register_module(NAME, nn.ModuleList([nn.Identity() if site is None else site for site in sites]))
    module.forward = functools.partial(_forward, path, module)  # type: ignore[method-assign]


def remove(module: nn.Module) -> None:
    """Take away what `install` gave."""
    delattr(module, NAME)
    del module.__dict__["forward"]


def converted_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that have linear attentions, by their path."""
    return {path: module for path, module in model.named_modules() if hasattr(module, NAME)}


def converted_sites(model: nn.Module) -> dict[str, list[AnySite | None]]:
    """The linear attentions of a converted model, by the path of their module and in the order of its calls."""
    return {path: _own_sites(module) for path, module in converted_modules(model).items()}


def softmax_in(modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
    """Inside, these converted modules compute softmax."""
    return marked(modules, RESTING)


def softmax_again(model: nn.Module) -> AbstractContextManager[None]:
    """Inside, a converted model computes softmax, as before its conversion."""
    return softmax_in(converted_modules(model).values())


def _own_sites(module: nn.Module) -> list[AnySite | None]:
    return [site if isinstance(site, AnySite) else None for site in getattr(module, NAME)]


def _forward(path: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if module.__dict__.get(RESTING):
        return type(module).forward(module, *args, **kwargs)
    with Rerouted(named(path), _own_sites(module)):
        return type(module).forward(module, *args, **kwargs)
