"""Torch's own worker threads for our kernels, where torch runs on GNU's OpenMP (Linux).

After a parallel operation torch's workers spin for a while before they sleep. Workers of our own would share the cores with
them; as the next operation of torch's team we find them awake instead. Only a runtime that is loaded already is used, so that
there is never a second one. LLN_NATIVE_THREADS=own keeps to our own pool.
"""

import ctypes
import os
from pathlib import Path


def torch_team() -> int | None:
    """The address of GOMP_parallel in the runtime that torch has loaded, or None."""
    if os.environ.get("LLN_NATIVE_THREADS") == "own":
        return None
    loaded = _loaded_runtime()
    if loaded is None:
        return None
    try:
        return ctypes.cast(ctypes.CDLL(loaded).GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _loaded_runtime() -> str | None:
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    found = {line.split(maxsplit=5)[5] for line in mapped if "/libgomp" in line}
    return found.pop() if len(found) == 1 else None
