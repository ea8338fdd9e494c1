"""Backends: the ways an operation can be computed, which of them there are, and which one is taken.

Every operation has the same names, so that one word chooses for all of them:

    native    C++ on the CPU
    chunked   plain torch, piece by piece, on any device
    oracle    float64, literal: the truth the others are tested against; serves only when asked for by name

A backend says in words why it cannot take given operands. "auto" is the first that can, in the order of registration.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

AUTO = "auto"
PLAIN = "chunked"  # plain torch: the backend that every device has


def _takes_everything(x: Any) -> str | None:
    return None


def _always_there() -> str | None:
    return None


@dataclass(frozen=True)
class Backend:
    """One way to compute an operation.

    forward: the results of a record of operands.
    backward: gradients by name, from (gradients of the results, by name, None where none came; the results; the operands; the
        names that are wanted). None: `forward` is made of torch operations, and torch differentiates it.
    refuses: why it cannot take these operands, or None.
    unavailable: why it cannot be used on this machine, or None.
    automatic: whether "auto" may take it.
    transparent: whether `forward` is made of torch operations, so that torch.func and forward mode can see through it.
    by_autograd: outside of graphs, let torch differentiate `forward` instead of calling `backward`.
    expected_on: the type of device whose users are told once when the backend is missing.
    """

    name: str
    forward: Callable[[Any], Any]
    backward: Callable[[dict[str, Tensor | None], Any, Any, set[str]], dict[str, Tensor]] | None = None
    refuses: Callable[[Any], str | None] = _takes_everything
    unavailable: Callable[[], str | None] = _always_there
    automatic: bool = True
    transparent: bool = False
    by_autograd: bool = False
    expected_on: str | None = None

    def refusal(self, x: Any) -> str | None:
        """Why it cannot compute `x` here, or None."""
        return self.unavailable() or self.refuses(x)


class Backends:
    """The backends of one operation, in the order in which "auto" tries them."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self._known: dict[str, Backend] = {}

    def register(self, backend: Backend) -> Backend:
        self._known[backend.name] = backend
        return backend

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._known.values())

    def __getitem__(self, name: str) -> Backend:
        if name not in self._known:
            raise ValueError(
                f"unknown backend {name!r}; there are {', '.join(map(repr, (AUTO, *self._known)))}"
                + (" ('chunked' is plain torch)" if name in ("torch", "plain") else "")
            )
        return self._known[name]

    def pick(self, name: str, x: Any) -> Backend:
        """The backend asked for, or the first automatic one that takes `x`; ValueError says why there is none."""
        if name == AUTO:
            for backend in self:
                if not backend.automatic:
                    continue
                if backend.refusal(x) is None:
                    return backend
                _notice(backend, x)
            raise ValueError("no backend takes these tensors: " + self._reasons(x))
        backend = self[name]
        reason = backend.refusal(x)
        if reason is not None:
            raise ValueError(f"backend {name!r} cannot be used here: {reason}")
        return backend

    def _reasons(self, x: Any) -> str:
        return "; ".join(f"{b.name}: {b.refusal(x) or 'serves only when asked for by name'}" for b in self)

    def transparent(self, name: str, x: Any) -> Backend:
        """The backend that torch.func and forward mode can see through: the one asked for, if it is one."""
        if name != AUTO:
            backend = self.pick(name, x)
            if not backend.transparent:
                raise ValueError(
                    f"backend {name!r} gives gradients by a kernel of its own, which torch.func and forward mode cannot see: "
                    f"use backend={AUTO!r}, which takes another one there"
                )
            return backend
        return next(b for b in self if b.transparent and b.automatic and b.refusal(x) is None)


_noticed: set[str] = set()


def _notice(backend: Backend, x: Any) -> None:
    """Say once that a backend that would be expected for these tensors is missing on this machine."""
    reason = backend.unavailable()
    if reason is None or backend.name in _noticed or backend.expected_on != x[0].device.type:
        return
    _noticed.add(backend.name)
    warnings.warn(f"LLN attention on {x[0].device.type} uses a slower backend: {reason}", stacklevel=5)
