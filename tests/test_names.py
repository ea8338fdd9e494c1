"""Public names: one thing each, typed, documented, and a mask's name says what True means."""

import importlib
import inspect
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Tensor

import lln
from lln import LLNState
from tests.public import PACKAGES, names


def public(package: str) -> dict[str, Any]:
    if package == "lln.hf":
        pytest.importorskip("transformers")
    module = importlib.import_module(package)
    return {f"{package}.{name}": getattr(module, name) for name in names(package)}


def functions(things: dict[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions, and public methods of public classes."""
    for name, thing in things.items():
        if inspect.isfunction(thing):
            yield name, thing
        if inspect.isclass(thing):
            for attribute, member in vars(thing).items():
                function = getattr(member, "__func__", getattr(member, "fget", member))
                if inspect.isfunction(function) and not attribute.startswith("_"):
                    yield f"{name}.{attribute}", function


# The same thing for any torch model and for Hugging Face models, which have caches and a config besides.
TWO_FRONTS = ["convert", "unload"]


def test_no_two_public_things_share_a_name() -> None:
    counted = Counter(name for package in PACKAGES for name in names(package))
    assert sorted(name for name, count in counted.items() if count > 1) == TWO_FRONTS


@pytest.mark.parametrize("package", PACKAGES)
def test_public_functions_say_what_they_return(package: str) -> None:
    for name, function in functions(public(package)):
        hints = typing.get_type_hints(function)
        assert "return" in hints, f"{name} does not say what it returns"
        assert hints["return"] is not Any, f"{name} returns anything"
        untyped = set(inspect.signature(function).parameters) - set(hints) - {"self", "cls"}
        assert not untyped, f"{name} has no type for {untyped}"


@pytest.mark.parametrize("function", [lln.lln_attention, lln.lln_diag_attention], ids=lambda f: f.__name__)
def test_asking_for_the_state_is_a_type_of_its_own(function: Callable[..., Any]) -> None:
    returned = [typing.get_type_hints(overload)["return"] for overload in typing.get_overloads(function)]
    assert returned == [Tensor, tuple[Tensor, LLNState]]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_thing_has_a_docstring(package: str) -> None:
    things = {name: thing for name, thing in public(package).items() if not isinstance(thing, str)}
    bare = [name for name, thing in things.items() if not inspect.getdoc(thing)]
    for name, _ in functions(things):
        *owner, method = name.split(".")
        thing: Any = things.get(".".join(owner))
        if thing is not None and not inspect.getdoc(getattr(thing, method)):
            bare.append(name)
    assert bare == []


@pytest.mark.parametrize("package", PACKAGES)
def test_only_layers_in_place_of_torchs_have_a_padding_mask(package: str) -> None:
    torchs = ("lln.LLNAttention.forward", "lln.LLNDiagAttention.forward", "lln.LLNEncoderLayer.forward")
    for name, function in functions(public(package)):
        padding = [p for p in inspect.signature(function).parameters if "padding_mask" in p]
        assert not padding or name in torchs, f"{name} takes {padding[0]}"
