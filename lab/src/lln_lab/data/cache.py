"""Decoded arrays, kept as .npy so that a second run maps them instead of decoding again."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy

Arrays = dict[str, numpy.ndarray]


def cached(cache: Path, key: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays of `make()`, mapped read-only. The key holds the checksum of what they are made from."""
    place = cache / key
    if not place.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=cache, prefix=f"{key}."))
        try:
            for name, array in make().items():
                numpy.save(aside / f"{name}.npy", array, allow_pickle=False)
            _publish(aside, place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return {path.stem: numpy.load(path, mmap_mode="r", allow_pickle=False) for path in sorted(place.glob("*.npy"))}


def _publish(aside: Path, place: Path) -> None:
    """Whole or not at all; another process may have been faster."""
    try:
        os.replace(aside, place)
    except OSError:
        if not place.is_dir():
            raise
