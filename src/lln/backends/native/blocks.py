"""Softmax attention inside blocks on the compiled kernel; see `lln.block_diagonal` for what it computes."""

import torch
from torch import Tensor

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
    out = empty_result(q, v.shape[-1])
    edges, words = _arguments(q, k, v, key_mask, cu_seqlens, block_size, scale, is_causal)
    return _run_forward(words, out, edges)


def attend_to_block(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor, scale: float) -> Tensor:
    """Attention of any number of queries to all keys that count: what decoding does with the block that is open.

    Its rows have the bits that `block_forward` gives them.
    """
    out = empty_result(q, v.shape[-1])
    edges, words = _arguments(q, k, v, key_mask, None, k.shape[2], scale, False, one_block=True)
    return _run_forward(words, out, edges)


def _run_forward(words: tuple[int, ...], out: Tensor, edges: Tensor | None) -> Tensor:
    call("block_forward", (*words, *strided(out), *NO_TENSOR * 4), BLOCK_WORDS)
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
    dq, dk, dv = (empty_result(x, x.shape[-1]) for x in (q, k, v))
    edges, words = _arguments(q, k, v, key_mask, cu_seqlens, block_size, scale, is_causal)
    words += (*NO_TENSOR, *strided(grad), *strided(dq), *strided(dk), *strided(dv))
    call("block_backward", words, BLOCK_WORDS)
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
    edges = boundaries(cu_seqlens)
    words = (
        torch.get_num_threads(), DTYPES[q.dtype], int(is_causal), int(one_block),
        q.shape[0] if edges is None else len(edges) - 1,
        q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3], min(block_size, k.shape[2]),
        real(scale), address(edges), *mask(key_mask), *strided(q), *strided(k), *strided(v),
    )  # fmt: skip
    return edges, words
