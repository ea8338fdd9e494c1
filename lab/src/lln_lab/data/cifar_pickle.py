"""CIFAR's python version is pickled, and a pickle can run any code: only what an array needs may be named in it."""

import pickle
from pathlib import Path
from typing import Any

import numpy

_ALLOWED = {
    "_reconstruct": numpy.zeros(0).__reduce__()[0],  # numpy's own constructor of a pickled array
    "ndarray": numpy.ndarray,
    "dtype": numpy.dtype,
}


class ForbiddenName(pickle.UnpicklingError, ValueError):
    """A pickle names what no array needs, which could be any code."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in _ALLOWED:
            return _ALLOWED[name]
        raise ForbiddenName(f"a batch of CIFAR names {module}.{name}, which no array needs: not loaded")


def read_batch(path: Path) -> tuple[numpy.ndarray, numpy.ndarray]:
    """(pixels (N, 3072) uint8 in the order colour, line, column, labels (N,) uint8)."""
    batch = _load(path)
    fields = batch if isinstance(batch, dict) else {}
    if absent := [name for name in ("data", "labels") if name.encode() not in fields]:
        has = ", ".join(key.decode(errors="replace") if isinstance(key, bytes) else str(key) for key in fields)
        raise ValueError(f"{path} has {has or 'no fields'}, but no {' and no '.join(absent)}: not a batch of CIFAR-10")
    pixels, labels = (numpy.asarray(batch[key], dtype=numpy.uint8) for key in (b"data", b"labels"))
    if not len(labels) or len(pixels) != len(labels):
        raise ValueError(f"{path} has {len(pixels):,} pictures and {len(labels):,} labels: one label each is needed")
    return pixels, labels


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="bytes").load()
    except ForbiddenName:
        raise
    except (EOFError, pickle.UnpicklingError) as reason:
        raise ValueError(f"{path} is truncated or not a pickle: {reason}") from reason
