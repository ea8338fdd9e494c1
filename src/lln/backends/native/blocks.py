"""Softmax attention inside blocks on the compiled kernel; see `lln.block_diagonal` for what it computes.

Tensors are passed by address and strides, as in `lln.backends.native.kernels`, and read without a copy.
"""

import struct
from array import array

import torch
from torch import Tensor

from lln.backends.native.kernels import DTYPES, supports
from lln.backends.native.library import BLOCK_WORDS, library
from lln.backends.operator import empty_output

_NO_TENSOR = (0, 0, 0, 0, 0)


def block_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    block_size: int,
    scale: float,
    is_causal: bool,
) -> Tensor:
    """out_i = sum_j softmax_j(scale q_i . k_j) v_j over the keys j of the block of i, laid out as q is."""
    out = empty_output(q, v.shape[-1])
    edges, words = _arguments(q, k, v, key_mask, cu_seqlens, block_size, scale, is_causal)
    return _run_forward(words, out, edges)


def attend_to_block(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor, scale: float) -> Tensor:
    """Attention of any number of queries to all keys that count: what decoding does with the block that is open.

    Its rows have the bits that `block_forward` gives them.
    """
    out = empty_output(q, v.shape[-1])
    edges, words = _arguments(q, k, v, key_mask, None, k.shape[2], scale, False, one_block=True)
    return _run_forward(words, out, edges)


def _run_forward(words: tuple[int, ...], out: Tensor, edges: Tensor | None) -> Tensor:
    block = array("q", words + _tensor(out) + _NO_TENSOR * 4)
    kernel = library()
    kernel.block_forward(kernel.isa(), block.buffer_info()[0])
    del edges
    return out


def block_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    block_size: int,
    scale: float,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, from the weights computed again; the output is not needed."""
    dq, dk, dv = (empty_output(x, x.shape[-1]) for x in (q, k, v))
    edges, words = _arguments(q, k, v, key_mask, cu_seqlens, block_size, scale, is_causal)
    block = array("q", words + _NO_TENSOR + _tensor(grad) + _tensor(dq) + _tensor(dk) + _tensor(dv))
    kernel = library()
    kernel.block_backward(kernel.isa(), block.buffer_info()[0])
    del edges
    return dq, dk, dv


def _arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    block_size: int,
    scale: float,
    is_causal: bool,
    one_block: bool = False,
) -> tuple[Tensor | None, tuple[int, ...]]:
    """The fields of `BlockProblem` up to `v`, and the tensor that must outlive the call."""
    reason = supports(q, k, v)
    if reason is not None:
        raise ValueError(reason)
    if q.shape[2] != k.shape[2] and not one_block:
        raise ValueError(f"blocks need as many queries as keys, got {q.shape[2]} and {k.shape[2]}")
    edges = None if cu_seqlens is None else cu_seqlens.to("cpu", torch.int64).contiguous()
    mask = (0, 0, 0) if key_mask is None else (key_mask.data_ptr(), *key_mask.stride())
    words = (
        torch.get_num_threads(), DTYPES[q.dtype], int(is_causal), int(one_block),
        q.shape[0] if edges is None else len(edges) - 1,
        q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3], min(block_size, k.shape[2]),
        *struct.unpack("q", struct.pack("d", scale)),
        0 if edges is None else edges.data_ptr(), *mask, *_tensor(q), *_tensor(k), *_tensor(v),
    )  # fmt: skip
    assert len(words) + 5 * len(_NO_TENSOR) == BLOCK_WORDS
    return edges, words


def _tensor(x: Tensor) -> tuple[int, ...]:
    return (x.data_ptr(), *x.stride())
