"""The C interface of the kernel, `csrc/interface.h`, field by field, and the one place where a tensor becomes a field.

A tensor crosses with its address, the bytes from there to the end of its storage, its dtype, sizes and strides: layouts like
(B, N, H, D).transpose(1, 2) are read without a copy, and the kernel refuses, in words, whatever it could not read or write
within those bytes.
"""

import ctypes
import struct
from ctypes import c_double, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

# The code of `enum Dtype`, and the bytes of an element. No tensor is 0; any other dtype is the kernel's to refuse.
DTYPES = {
    torch.float32: (1, 4),
    torch.float16: (2, 2),
    torch.bfloat16: (3, 2),
    torch.float64: (4, 8),
    torch.int64: (5, 8),
    torch.bool: (6, 1),
}
_OTHER_DTYPE = (7, 16)  # as wide as any, so that the bytes are never said to be more than they are
_MOST_DIMENSIONS = 4


class View(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_int64),
        ("dtype", c_int64),
        ("rank", c_int64),
        ("size", c_int64 * _MOST_DIMENSIONS),
        ("stride", c_int64 * _MOST_DIMENSIONS),
    ]


def _views(names: str) -> list[tuple[str, Any]]:
    return [(name, View) for name in names.split()]


def _integers(names: str) -> list[tuple[str, Any]]:
    return [(name, c_int64) for name in names.split()]


class Call(ctypes.Structure):
    """What one function of the library is called with. It keeps alive the tensors it points to."""

    isa: int
    threads: int

    def pass_tensors(self, **tensors: Tensor | None) -> None:
        """Fill in the fields of these names; None leaves a field empty."""
        offsets = _offsets(type(self))
        for name, x in tensors.items():
            if x is None:
                continue
            if not x.is_cpu:
                raise ValueError(f"the native backend runs on the CPU; {name} is on {x.device}")
            code, width = DTYPES.get(x.dtype, _OTHER_DTYPE)
            behind = x.untyped_storage().nbytes() - x.storage_offset() * width
            strides = x.stride()
            rank = len(strides)
            if rank > _MOST_DIMENSIONS:
                raise ValueError(f"{name} has {rank} dimensions; tensors here have at most {_MOST_DIMENSIONS}")
            _PACK[rank](self, offsets[name], x.data_ptr(), behind, code, rank, *x.shape, *strides)
        self.__dict__.update(tensors)


class AttentionCall(Call):
    _fields_ = [
        *_integers("isa threads is_causal parameter_grads"),
        *_views("q k v alpha beta bias key_mask cu_seqlens start_maximum start_summed start_normaliser"),
        *_views("maximum summed normaliser out grad dq dk dv dalpha dbeta dbias"),
        *_views("dsummed dnormaliser dstart_summed dstart_normaliser weight"),
    ]


class MomentsCall(Call):
    _fields_ = [*_integers("isa threads"), *_views("x key_mask cu_seqlens count total squares")]


class MatchCall(Call):
    _fields_ = [
        *_integers("isa threads center_keys"),
        ("scale", c_double),
        ("first_log2_t", c_double),
        ("step_log2_t", c_double),
        ("first_log2_length", c_double),
        ("step_log2_length", c_double),
        *_views("q k query_mask key_mask cu_seqlens table alpha beta entropies"),
    ]


class BlockCall(Call):
    _fields_ = [
        *_integers("isa threads is_causal one_block block_size add_to_dq_dk add_to_dv"),
        ("scale", c_double),
        *_views("q k v key_mask cu_seqlens out grad dq dk dv far weight dweight"),
    ]


# Which functions there are, and what each is called with.
CALLS: dict[str, type[Call]] = {
    "forward": AttentionCall,
    "backward": AttentionCall,
    "moments": MomentsCall,
    "match": MatchCall,
    "block_forward": BlockCall,
    "block_backward": BlockCall,
}
# What the library calls the sizes of these structs, which must be those of its own.
SIZES = {
    "attention_call_bytes": ctypes.sizeof(AttentionCall),
    "moments_call_bytes": ctypes.sizeof(MomentsCall),
    "match_call_bytes": ctypes.sizeof(MatchCall),
    "block_call_bytes": ctypes.sizeof(BlockCall),
}


# `View` for each rank, packed in one go: assigning its fields one by one would cost more than a small call.
def _layout(rank: int) -> struct.Struct:
    rest = 8 * (_MOST_DIMENSIONS - rank)
    layout = struct.Struct(f"=4q{rank}q{rest}x{rank}q{rest}x")
    assert layout.size == ctypes.sizeof(View)
    return layout


_PACK = [_layout(rank).pack_into for rank in range(_MOST_DIMENSIONS + 1)]


@cache
def _offsets(kind: type[Call]) -> dict[str, int]:
    return {name: getattr(kind, name).offset for name, of in kind._fields_ if of is View}  # type: ignore[misc]
