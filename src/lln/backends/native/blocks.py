"""Softmax attention inside blocks on the compiled kernel; see `lln.block_diagonal` for what it computes."""

import torch
from torch import Tensor

from lln.backends.block_operands import BlockOperands
from lln.backends.native.arguments import (
    DTYPES,
    NO_TENSOR,
    address,
    boundaries,
    call,
    empty_result,
    mask,
    real,
    strided,
)
from lln.backends.native.kernels import supports
from lln.backends.native.library import BLOCK_WORDS


def block_forward(x: BlockOperands) -> Tensor:
    """out_i = sum_j softmax_j(scale q_i . k_j) v_j over the keys j of the block of i, laid out as q is."""
    return _forward(x, one_block=False)


def attend_to_block(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor, scale: float) -> Tensor:
    """Attention of any number of queries to all keys that count: what decoding does with the block that is open.

    Its rows have the bits that `block_forward` gives them.
    """
    return _forward(BlockOperands(q, k, v, key_mask, None, k.shape[2], scale, False), one_block=True)


def _forward(x: BlockOperands, one_block: bool) -> Tensor:
    out = empty_result(x.q, x.v.shape[-1])
    edges, words = _arguments(x, one_block)
    call("block_forward", (*words, *strided(out), *NO_TENSOR * 4), BLOCK_WORDS)
    del edges
    return out


def block_backward(grad: Tensor, x: BlockOperands) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, from the weights computed again; the output is not needed."""
    dq, dk, dv = (empty_result(t, t.shape[-1]) for t in (x.q, x.k, x.v))
    edges, words = _arguments(x, one_block=False)
    words += (*NO_TENSOR, *strided(grad), *strided(dq), *strided(dk), *strided(dv))
    call("block_backward", words, BLOCK_WORDS)
    del edges
    return dq, dk, dv


def _arguments(x: BlockOperands, one_block: bool) -> tuple[Tensor | None, tuple[int, ...]]:
    """The fields of `BlockProblem` up to `v`, and the tensor that must outlive the call."""
    q, k, v = x.q, x.k, x.v
    reason = supports(q, k, v)
    if reason is not None:
        raise ValueError(reason)
    if q.shape[2] != k.shape[2] and not one_block:
        raise ValueError(f"blocks need as many queries as keys, got {q.shape[2]} and {k.shape[2]}")
    edges = boundaries(x.cu_seqlens)
    words = (
        torch.get_num_threads(), DTYPES[q.dtype], int(x.is_causal), int(one_block),
        q.shape[0] if edges is None else len(edges) - 1,
        q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3], min(x.block_size, k.shape[2]),
        real(x.scale), address(edges), *mask(x.key_mask), *strided(q), *strided(k), *strided(v),
    )  # fmt: skip
    return edges, words
