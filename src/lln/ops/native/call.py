"""A call of the kernel: whether it can be made on this machine and these tensors, and the one place where a tensor crosses.

A tensor crosses with its address, the bytes from there to the end of its storage, its dtype, sizes and strides: layouts like
(B, N, H, D).transpose(1, 2) are read without a copy, and the kernel refuses, in words, whatever it could not read or write
within those bytes.

Environment: LLN_NATIVE_ISA picks an instruction set by name (portable, avx2, avx512, neon) in place of this machine's best.
"""

import ctypes
import os
import struct
from functools import cache

import torch
from torch import Tensor

from lln.ops.native.interface import CALLS, MOST_DIMENSIONS, Call, View
from lln.ops.native.library import Library, UnusableError, library
from lln.ops.operation import empty_rows

INPUT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGE_RESULT = 1 << 22  # bytes; two huge pages
MOST_THREADS = 1024  # of the kernel


def available() -> str | None:
    """None if the kernel can run here, else why not."""
    try:
        _instruction_set(library())
    except UnusableError as error:
        return str(error)
    return None


def supports(*tensors: Tensor) -> str | None:
    """None if the kernel takes these tensors, else why not."""
    for name, tensor in zip("qkv", tensors, strict=False):
        if not tensor.is_cpu:
            return f"the native backend runs on the CPU; {name} is on {tensor.device}"
        if tensor.dtype not in INPUT_DTYPES:
            return f"the native backend takes float32, float16 and bfloat16; {name} is {tensor.dtype}"
    return None


def run(function: str, **fields: Tensor | float | None) -> None:
    """Call one of the library's functions with these fields; what it refuses, it says why. None leaves a field empty."""
    kernel = library()
    call = filled(CALLS[function], **fields)
    call.isa = _instruction_set(kernel)
    call.threads = min(torch.get_num_threads(), MOST_THREADS)
    wrong: bytes | None = kernel.functions[function](ctypes.byref(call))
    if wrong is not None:
        raise ValueError(wrong.decode())


def filled(kind: type[Call], **fields: Tensor | float | None) -> Call:
    """A call with these fields. It points to the tensors and does not keep them alive."""
    call, offsets = kind(), _offsets(kind)
    for name, x in fields.items():
        if isinstance(x, Tensor):
            _pass(call, offsets[name], name, x)
        elif x is not None:
            setattr(call, name, x)
    return call


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


def _instruction_set(kernel: Library) -> int:
    """The number of the instruction set to use for a call made now."""
    wanted = os.environ.get("LLN_NATIVE_ISA")
    if not wanted:
        return kernel.best
    if wanted not in kernel.usable:
        raise UnusableError(
            f"LLN_NATIVE_ISA={wanted!r} cannot run on this machine, which has: {', '.join(kernel.usable)}"
        )
    return kernel.usable[wanted]


# The code of `enum Dtype`, and the bytes of an element. No tensor is 0; any other dtype is the kernel's to refuse.
_DTYPES = {
    torch.float32: (1, 4),
    torch.float16: (2, 2),
    torch.bfloat16: (3, 2),
    torch.float64: (4, 8),
    torch.int64: (5, 8),
    torch.bool: (6, 1),
}
_OTHER_DTYPE = (7, 16)  # as wide as any, so that the bytes are never said to be more than they are


def _pass(call: Call, offset: int, name: str, x: Tensor) -> None:
    if not x.is_cpu:
        raise ValueError(f"the native backend runs on the CPU; {name} is on {x.device}")
    code, width = _DTYPES.get(x.dtype, _OTHER_DTYPE)
    behind = x.untyped_storage().nbytes() - x.storage_offset() * width
    strides = x.stride()
    rank = len(strides)
    if rank > MOST_DIMENSIONS:
        raise ValueError(f"{name} has {rank} dimensions; tensors here have at most {MOST_DIMENSIONS}")
    _PACK[rank](call, offset, x.data_ptr(), behind, code, rank, *x.shape, *strides)


# `View` for each rank, packed in one go: assigning its fields one by one would cost more than a small call.
def _layout(rank: int) -> struct.Struct:
    rest = 8 * (MOST_DIMENSIONS - rank)
    layout = struct.Struct(f"=4q{rank}q{rest}x{rank}q{rest}x")
    assert layout.size == ctypes.sizeof(View)
    return layout


_PACK = [_layout(rank).pack_into for rank in range(MOST_DIMENSIONS + 1)]


@cache
def _offsets(kind: type[Call]) -> dict[str, int]:
    return {name: getattr(kind, name).offset for name, of in kind._fields_ if of is View}  # type: ignore[misc]
