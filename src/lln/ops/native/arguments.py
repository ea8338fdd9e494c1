"""Tensors as the kernel takes them, and the call of one of its functions."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from lln.ops.native.interface import Call
from lln.ops.native.library import library
from lln.ops.operation import empty_rows

LARGE_RESULT = 1 << 22  # bytes; two huge pages
MOST_THREADS = 1024  # of the kernel


def dense(x: Tensor | None) -> Tensor | None:
    return x if x is None or x.is_contiguous() else x.contiguous()


def boundaries(cu_seqlens: Tensor | None) -> Tensor | None:
    """As the kernel reads them; it refuses what is neither int32 nor int64."""
    if cu_seqlens is None:
        return None
    return dense(cu_seqlens.long() if cu_seqlens.dtype == torch.int32 else cu_seqlens)


def empty_result(like: Tensor, features: int) -> Tensor:
    """`empty_rows`, in huge pages where it is large: to touch fresh memory page by page costs as much as filling it."""
    result = empty_rows(like, features)
    if result.nbytes >= LARGE_RESULT:
        library().prefer_huge_pages(result.data_ptr(), result.nbytes)
    return result


def run(name: str, call: Call) -> None:
    """Run one of the library's functions; what it refuses, it says why."""
    kernel = library()
    call.isa = kernel.isa()
    call.threads = min(torch.get_num_threads(), MOST_THREADS)
    function: Any = kernel.functions[name]
    wrong: bytes | None = function(ctypes.byref(call))
    if wrong is not None:
        raise ValueError(wrong.decode())
