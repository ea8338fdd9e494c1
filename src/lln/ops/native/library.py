"""Find and open the compiled library, once.

Environment: LLN_NATIVE_LIBRARY opens another build of it, e.g. one with sanitizers; LLN_NATIVE_THREADS: see `team`.
"""

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from lln.ops.native.interface import CALLS, SIZES
from lln.ops.native.team import torch_team

# where `build.py` puts it
LIBRARY = Path(__file__).with_name("_kernel" + {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so"))


class UnusableError(RuntimeError):
    """The native backend cannot run here; the message says why and what would help."""


@dataclass(frozen=True)
class Library:
    """The opened library: its functions, and the instruction sets this machine can run, worst to best."""

    functions: dict[str, Any]  # each takes the address of a call and returns None, or what is wrong with it
    prefer_huge_pages: Any
    usable: dict[str, int]
    best: int


@lru_cache(maxsize=1)
def library() -> Library:
    """Open the library once; raises `UnusableError` when there is none or it is of another version."""
    path = Path(os.environ.get("LLN_NATIVE_LIBRARY") or LIBRARY)
    if not path.exists():
        raise UnusableError(
            "the native kernel is not compiled: install a C++ compiler and reinstall, "
            "or run `python -m lln.ops.native.build`"
        )
    try:
        opened = ctypes.CDLL(str(path))
    except OSError as error:
        raise UnusableError(f"the native kernel does not load: {error}") from error
    if not hasattr(opened, "lln_kernel_count"):
        raise UnusableError(f"{path.name} is not the native kernel")
    complete = all(hasattr(opened, f"lln_{name}") for name in (*CALLS, *SIZES, "use_team", "prefer_huge_pages"))
    if not complete or any(getattr(opened, f"lln_{name}")() != size for name, size in SIZES.items()):
        raise UnusableError("the native kernel is of another version: run `python -m lln.ops.native.build`")
    opened.lln_kernel_name.restype = ctypes.c_char_p
    usable = {
        opened.lln_kernel_name(i).decode(): i for i in range(opened.lln_kernel_count()) if opened.lln_kernel_usable(i)
    }
    functions = {name: getattr(opened, f"lln_{name}") for name in CALLS}
    for function in functions.values():
        function.argtypes = [ctypes.c_void_p]
        function.restype = ctypes.c_char_p
    opened.lln_use_team.argtypes = [ctypes.c_void_p]
    opened.lln_use_team.restype = None
    opened.lln_use_team(torch_team())
    opened.lln_prefer_huge_pages.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    opened.lln_prefer_huge_pages.restype = None
    return Library(functions, opened.lln_prefer_huge_pages, usable, max(usable.values()))
