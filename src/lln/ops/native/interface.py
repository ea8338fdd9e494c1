"""The C interface of the kernel, `csrc/interface.h`, field by field: which functions there are and what each is called with."""

import ctypes
from ctypes import c_double, c_int64, c_void_p
from typing import Any

MOST_DIMENSIONS = 4


class View(ctypes.Structure):
    """A tensor: where it starts, how many bytes there are from there on, what is in it and how it is laid out."""

    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_int64),
        ("dtype", c_int64),
        ("rank", c_int64),
        ("size", c_int64 * MOST_DIMENSIONS),
        ("stride", c_int64 * MOST_DIMENSIONS),
    ]


def _views(names: str) -> list[tuple[str, Any]]:
    return [(name, View) for name in names.split()]


def _integers(names: str) -> list[tuple[str, Any]]:
    return [(name, c_int64) for name in names.split()]


class Call(ctypes.Structure):
    """What one function of the library is called with."""

    isa: int
    threads: int


class AttentionCall(Call):
    _fields_ = [
        *_integers("isa threads is_causal parameter_grads"),
        *_views("q k v alpha beta bias key_mask cu_seqlens start_maximum start_summed start_normaliser"),
        *_views("maximum summed normaliser out grad dq dk dv dalpha dbeta dbias"),
        *_views("dsummed dnormaliser dstart_summed dstart_normaliser"),
    ]


class BlockCall(Call):
    _fields_ = [
        *_integers("isa threads is_causal one_block block_size"),
        ("scale", c_double),
        *_views("q k v key_mask cu_seqlens out grad dq dk dv"),
    ]


class DiagCall(Call):
    _fields_ = [
        *_integers("isa threads is_causal parameter_grads block_size"),
        ("scale", c_double),
        *_views("q k v lln_q lln_k alpha beta bias weight key_mask cu_seqlens"),
        *_views("maximum summed normaliser out lln_out"),
        *_views("grad dq dk dv dlln_q dlln_k dalpha dbeta dbias dweight"),
    ]


class DiagStepCall(Call):
    _fields_ = [
        *_integers("isa threads"),
        ("scale", c_double),
        *_views("q k v lln_q lln_k alpha beta bias weight key_mask"),
        *_views("start_maximum start_summed start_normaliser maximum summed normaliser out"),
        *_views("keys values counts filled started"),
        *_views("keys_after values_after counts_after filled_after started_after"),
    ]


class NearFarCall(Call):
    _fields_ = [
        *_integers("isa threads is_causal parameter_grads block_size neighbours first_tokens"),
        ("scale", c_double),
        *_views("q k v alpha beta bias key_mask cu_seqlens weights out"),
        *_views("grad dq dk dv dalpha dbeta dbias dweights"),
    ]


class NearFarStepCall(Call):
    _fields_ = [
        *_integers("isa threads"),
        ("scale", c_double),
        *_views("q k v key_mask first_k first_v first_mask alpha beta bias weights"),
        *_views("total key_mean key_spread value_mean product maximum summed normaliser out"),
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


CALLS: dict[str, type[Call]] = {
    "forward": AttentionCall,
    "backward": AttentionCall,
    "block_forward": BlockCall,
    "block_backward": BlockCall,
    "diag_forward": DiagCall,
    "diag_backward": DiagCall,
    "diag_step": DiagStepCall,
    "near_far_forward": NearFarCall,
    "near_far_backward": NearFarCall,
    "near_far_step": NearFarStepCall,
    "moments": MomentsCall,
    "match": MatchCall,
}
# What the library calls the sizes of these structs, which must be those of its own.
SIZES = {
    "attention_call_bytes": ctypes.sizeof(AttentionCall),
    "block_call_bytes": ctypes.sizeof(BlockCall),
    "diag_call_bytes": ctypes.sizeof(DiagCall),
    "diag_step_call_bytes": ctypes.sizeof(DiagStepCall),
    "near_far_call_bytes": ctypes.sizeof(NearFarCall),
    "near_far_step_call_bytes": ctypes.sizeof(NearFarStepCall),
    "moments_call_bytes": ctypes.sizeof(MomentsCall),
    "match_call_bytes": ctypes.sizeof(MatchCall),
}
