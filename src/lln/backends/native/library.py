"""Find and open the compiled library, and choose the instruction set.

Environment: LLN_NATIVE_ISA picks an instruction set by name (portable, avx2, avx512) instead of the best one this machine
has; LLN_NATIVE_LIBRARY opens another build of the library, e.g. one with sanitizers; LLN_NATIVE_THREADS: see `team`.
"""

import ctypes
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from lln.backends.native.team import torch_team

LIBRARY = Path(__file__).with_name("_kernel.so")  # where `build.py` puts it
# The number of 64-bit words in the argument blocks of `csrc/problem.h`, as the Python files beside this one fill them.
PROBLEM_WORDS = 67
MOMENTS_WORDS = 18
MATCH_WORDS = 47
BLOCK_WORDS = 57
WORDS = {"problem": PROBLEM_WORDS, "moments": MOMENTS_WORDS, "match": MATCH_WORDS, "block": BLOCK_WORDS}
FUNCTIONS = ("forward", "backward", "moments", "match", "block_forward", "block_backward")


class UnusableError(RuntimeError):
    """The native backend cannot run here; the message says why and what would help."""


@dataclass(frozen=True)
class Library:
    """The opened library: its functions, and the instruction sets this machine can run, worst to best."""

    forward: Any
    backward: Any
    moments: Any
    match: Any
    block_forward: Any
    block_backward: Any
    prefer_huge_pages: Any
    usable: dict[str, int]

    def isa(self) -> int:
        """The number of the instruction set to use for a call made now."""
        wanted = os.environ.get("LLN_NATIVE_ISA")
        if not wanted:
            return max(self.usable.values())
        if wanted not in self.usable:
            raise UnusableError(
                f"LLN_NATIVE_ISA={wanted!r} cannot run on this machine, which has: {', '.join(self.usable)}"
            )
        return self.usable[wanted]


@lru_cache(maxsize=1)
def library() -> Library:
    """Open the library once; raises `UnusableError` when there is none or it is of another version."""
    path = Path(os.environ.get("LLN_NATIVE_LIBRARY") or LIBRARY)
    if not path.exists():
        raise UnusableError(
            "the native kernel is not compiled: install a C++ compiler and reinstall, "
            "or run `python -m lln.backends.native.build`"
        )
    try:
        opened = ctypes.CDLL(str(path))
    except OSError as error:
        raise UnusableError(f"the native kernel does not load: {error}") from error
    if not hasattr(opened, "lln_kernel_count"):
        raise UnusableError(f"{path.name} is not the native kernel")
    sizes = {name: getattr(opened, f"lln_{name}_words", None) for name in WORDS}
    complete = all(hasattr(opened, f"lln_{name}") for name in (*FUNCTIONS, "use_team", "prefer_huge_pages"))
    if not complete or any(size is None or size() != WORDS[name] for name, size in sizes.items()):
        raise UnusableError("the native kernel is of another version: run `python -m lln.backends.native.build`")
    opened.lln_kernel_name.restype = ctypes.c_char_p
    usable = {
        opened.lln_kernel_name(i).decode(): i for i in range(opened.lln_kernel_count()) if opened.lln_kernel_usable(i)
    }
    functions = {name: getattr(opened, f"lln_{name}") for name in FUNCTIONS}
    for function in functions.values():
        function.argtypes = [ctypes.c_int64, ctypes.c_void_p]
        function.restype = None
    opened.lln_use_team.argtypes = [ctypes.c_void_p]
    opened.lln_use_team.restype = None
    opened.lln_use_team(torch_team())
    opened.lln_prefer_huge_pages.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    opened.lln_prefer_huge_pages.restype = None
    return Library(**functions, prefer_huge_pages=opened.lln_prefer_huge_pages, usable=usable)
