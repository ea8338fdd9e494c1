"""How arguments are laid out for the kernel: everything is a 64-bit word, in the order of the structs of `csrc/problem.h`.

Tensors are passed by address and strides, so that layouts like (B, N, H, D).transpose(1, 2) are read without a copy.
"""

import struct
from array import array
from typing import Any

import torch
from torch import Tensor

from lln.backends.native.library import library
from lln.backends.operator import empty_output

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
NO_TENSOR = (0, 0, 0, 0, 0)
LARGE_RESULT = 1 << 22  # bytes; two huge pages


def address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def strided(x: Tensor) -> tuple[int, ...]:
    """The fields of `Tensor`."""
    return (x.data_ptr(), *x.stride())


def mask(key_mask: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0) if key_mask is None else (key_mask.data_ptr(), *key_mask.stride())


def real(x: float) -> int:
    """The bits of a double."""
    bits: int = struct.unpack("q", struct.pack("d", x))[0]
    return bits


def dense(x: Tensor | None) -> Tensor | None:
    return x if x is None or x.is_contiguous() else x.contiguous()


def boundaries(cu_seqlens: Tensor | None) -> Tensor | None:
    """As the kernel reads them; the result must outlive the call."""
    return None if cu_seqlens is None else cu_seqlens.to("cpu", torch.int64).contiguous()


def empty_result(like: Tensor, features: int) -> Tensor:
    """`empty_output`, in huge pages where it is large: to touch fresh memory page by page costs as much as filling it."""
    result = empty_output(like, features)
    if result.nbytes >= LARGE_RESULT:
        library().prefer_huge_pages(result.data_ptr(), result.nbytes)
    return result


def call(name: str, words: tuple[int, ...], size: int) -> None:
    """Run one of the library's functions on an argument block of `size` words."""
    assert len(words) == size, f"{name} takes {size} words, got {len(words)}"
    block = array("q", words)
    kernel = library()
    function: Any = getattr(kernel, name)
    function(kernel.isa(), block.buffer_info()[0])
