"""What moment matching needs of q and k, on the compiled kernel: the sums over positions, and alpha and beta in one call."""

import torch
from torch import Tensor

from lln.backends.native.arguments import DTYPES, address, boundaries, call, mask, real, strided
from lln.backends.native.library import MATCH_WORDS, MOMENTS_WORDS


def moments(
    x: Tensor, key_mask: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """How many rows of x (B, H, N, D) count, and sum_n x_n and sum_n x_n^2 over them, for each head and feature.

    One pass over x. Returns count (S,) int64, and total and squares (S, H, D) float64, with S the number of packed sequences,
    or B. Sums are in float64 throughout.
    """
    edges = boundaries(cu_seqlens)
    sequences = _sequences(x, edges)
    count = torch.empty(sequences, dtype=torch.int64)
    total = torch.empty(sequences, x.shape[1], x.shape[3], dtype=torch.float64)
    squares = torch.empty_like(total)
    results = (total.data_ptr(), squares.data_ptr(), count.data_ptr())
    call("moments", (*_sums(x, key_mask, edges), *results), MOMENTS_WORDS)
    return count, total, squares


def match(
    q: Tensor,
    k: Tensor,
    query_mask: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    table: Tensor,
    log2_t: tuple[float, float],
    log2_length: tuple[float, float],
    squared_scale: float,
    center_keys: bool,
) -> tuple[Tensor, Tensor]:
    """alpha and beta (S, Hk) in float64 for q (B, Hq, Nq, D) and k (B, Hk, Nk, D); see `lln.matching`.

    `table` (lengths, temperatures) float64 holds log2 r over two uniform grids, each given by its first point and its step.
    """
    edges = boundaries(cu_seqlens)
    shape = (_sequences(k, edges), k.shape[1])
    alpha, beta = torch.empty(shape, dtype=torch.float64), torch.empty(shape, dtype=torch.float64)
    lengths, temperatures = table.shape
    words = (
        *_sums(q, query_mask, edges), 0, 0, 0, *_sums(k, key_mask, edges), 0, 0, 0, int(center_keys), real(squared_scale),
        table.data_ptr(), *map(real, log2_t), temperatures, *map(real, log2_length), lengths,
        alpha.data_ptr(), beta.data_ptr(),
    )  # fmt: skip
    call("match", words, MATCH_WORDS)
    return alpha, beta


def _sequences(x: Tensor, edges: Tensor | None) -> int:
    return x.shape[0] if edges is None else len(edges) - 1


def _sums(x: Tensor, key_mask: Tensor | None, edges: Tensor | None) -> tuple[int, ...]:
    """The fields of `MomentsProblem` up to `x`."""
    _, heads, rows, dim = x.shape
    return (
        torch.get_num_threads(), DTYPES[x.dtype], _sequences(x, edges), heads, rows, dim,
        address(edges), *mask(key_mask), *strided(x),
    )  # fmt: skip
