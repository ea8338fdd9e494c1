"""Backends compute the same attention in different ways.

`oracle` (float64, log space, N x N) is the truth the others are tested against and serves only when asked for by name;
`native` (C++ on CPU) and `chunked` (plain torch, any device) implement the operator of `lln.backends.operator`. The first
of `AUTOMATIC` that is available and takes the given tensors is used.
"""

import warnings
from typing import Any

import torch
from torch import Tensor

from lln.backends import chunked, native, oracle

AUTOMATIC = ("native", "chunked")
_NATIVE_UNAVAILABLE = native.available()  # asked once, so that a compiled graph need not ask
_noticed = False


def names() -> tuple[str, ...]:
    return (*AUTOMATIC, "oracle")


def unavailable(name: str) -> str | None:
    """Why a backend cannot be used on this machine, or None when it can."""
    return _NATIVE_UNAVAILABLE if name == "native" else None


def refusal(name: str, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why a backend cannot take these tensors, or None when it can."""
    if name == "native":
        return _NATIVE_UNAVAILABLE or native.supports(q, k, v)
    return None


def pick(name: str | None, q: Tensor, k: Tensor, v: Tensor) -> str:
    """The backend asked for, or the first automatic one that fits."""
    if name is None:
        _notice_slower_path(q)
        return next(candidate for candidate in AUTOMATIC if refusal(candidate, q, k, v) is None)
    if name not in names():
        raise ValueError(f"unknown backend {name!r}; there are {', '.join(map(repr, names()))}")
    reason = refusal(name, q, k, v)
    if reason is not None:
        raise ValueError(f"backend {name!r} cannot be used here: {reason}")
    return name


def _notice_slower_path(q: Tensor) -> None:
    """Say once that tensors on CPU take the slower path because the kernel is missing."""
    global _noticed
    if _NATIVE_UNAVAILABLE is None or _noticed or q.device.type != "cpu" or torch.compiler.is_compiling():
        return
    _noticed = True
    warnings.warn(f"LLN attention on CPU uses the slower backend 'chunked': {_NATIVE_UNAVAILABLE}", stacklevel=4)


def forward(name: str, *operands: Any) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Output and final state of backend `name`; the oracle keeps no state."""
    if name == "native":
        return native.OPERATOR.forward(*operands)
    if name == "chunked":
        return chunked.OPERATOR.forward(*operands)
    q, k, v, alpha, beta, bias, key_mask, cu_seqlens, *_start, is_causal = operands
    out, _ = oracle.attention(q, k, v, alpha, beta, bias, key_mask, cu_seqlens, is_causal)
    return out.to(q.dtype), None, None, None
