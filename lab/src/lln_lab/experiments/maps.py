"""Attention maps of softmax, LLN and LLN+Diag for the same queries and keys, over the whole length.

A map of more tokens than cells is averaged: a cell is the sum over its keys and the mean over its queries,

    M_ab = 1/|a| Σ_{i in a} Σ_{j in b} P_ij,

so that its rows sum to 1, as those of P do. P is never held as a whole: rows are made, averaged and forgotten.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lln.instruments import BlockDiagonalMatrix, LLNMatrix, MixtureMatrix, SoftmaxMatrix, spectral_gap
from lln.instruments.attention import AttentionMatrix
from lln.matching import match_moments
from lln_lab.report.codes import encode

CELLS = 1_200_000  # of all maps of one page
FINEST = 512  # cells along an axis of one map
GAP_UP_TO = 4096  # tokens: beyond, softmax's gap takes longer than everything else
BLOCK_SIZE = 64


@dataclass(frozen=True)
class Layer:
    """The attention of one layer for one text: softmax's matrix, and the queries and keys that it was made from."""

    softmax: AttentionMatrix
    q: Tensor  # (1, Hq, N, D)
    k: Tensor  # (1, Hk, N, D)
    number: int

    @classmethod
    def of(cls, number: int, q: Tensor, k: Tensor) -> "Layer":
        return cls(SoftmaxMatrix(q, k), q, k, number)

    def of_heads(self, heads: Sequence[int]) -> "Layer":
        """The same with these heads only. Heads that share keys are matched together, so such layers stay whole."""
        matrix = self.softmax
        if not isinstance(matrix, SoftmaxMatrix) or self.q.shape[1] != self.k.shape[1]:
            return self
        q, k, mask = self.q[:, heads], self.k[:, heads], matrix.mask
        if mask is not None:
            mask = mask[:, heads] if mask.dim() == 4 and mask.shape[1] > 1 else mask
            return Layer(SoftmaxMatrix(q, k, scale=matrix.scale, mask=mask), q, k, self.number)
        fewer = SoftmaxMatrix(q, k, scale=matrix.scale, key_mask=matrix.key_mask, is_causal=matrix.is_causal)
        return Layer(fewer, q, k, self.number)

    def kinds(self, block_size: int) -> dict[str, AttentionMatrix]:
        causal = self.softmax.is_causal
        lln = LLNMatrix(self.q, self.k, *match_moments(self.q, self.k), is_causal=causal)
        blocks = BlockDiagonalMatrix(self.q, self.k, block_size, is_causal=causal)
        return {"softmax": self.softmax, "lln": lln, "lln_diag": MixtureMatrix(lln, blocks)}


def attention_maps(
    layers: Sequence[Layer],
    tokens: Sequence[str],
    *,
    heads: Iterable[int] | None = None,
    block_size: int = BLOCK_SIZE,
    on_map: Callable[[str], None] = lambda what: None,
) -> list[dict[str, Any]]:
    """One entry for each layer, head and kind, as `lln report` reads them."""
    count, length = layers[0].q.shape[1], layers[0].q.shape[2]
    chosen = sorted(set(range(count) if heads is None else heads))
    side = min(FINEST, math.isqrt(CELLS // max(1, 3 * len(layers) * len(chosen))))
    cell = max(1, math.ceil(length / side))
    found: list[dict[str, Any]] = []
    for layer in (each.of_heads(chosen) for each in layers):
        for kind, matrix in layer.kinds(block_size).items():
            on_map(f"layer {layer.number}, {kind}")
            averages, bits = averaged(matrix, cell)
            gaps = _gaps(matrix, kind, length)
            for place, head in enumerate(chosen):
                at = place if layer.q.shape[1] == len(chosen) else head
                found.append({
                    "attention": kind, "label": kind, "layer": layer.number, "head": head, "length": length, "cell": cell,
                    "rows": averages.shape[1], "columns": averages.shape[2], "codes": encode(averages[at].numpy()),
                    "row_sum": round(float(averages[at].sum(-1).mean()), 6), "entropy": round(float(bits[at]), 4),
                    "gap": None if gaps is None else round(float(gaps[at]), 4),
                    "block_size": block_size if kind == "lln_diag" else None,
                    "text": None if found else list(tokens),
                })  # fmt: skip
    return found


def averaged(matrix: AttentionMatrix, cell: int) -> tuple[Tensor, Tensor]:
    """(H, S, S) averages over cells, and the mean row entropy (H,) in bits, of the first sample, in one pass over rows."""
    _, heads, queries, keys = matrix.shape
    rows, columns = math.ceil(queries / cell), math.ceil(keys / cell)
    sums = torch.zeros(heads, rows, columns, dtype=torch.float64)
    bits = torch.zeros(heads, dtype=torch.float64)
    for index in matrix.row_chunks():
        part = matrix.rows(index)[0]  # (H, R, Nk)
        bits -= torch.special.xlogy(part, part).sum(-1).double().sum(-1).cpu() / math.log(2)
        padded = torch.nn.functional.pad(part, (0, columns * cell - keys))
        by_key = padded.unflatten(-1, (columns, cell)).sum(-1)  # (H, R, columns)
        sums.index_add_(1, index.cpu() // cell, by_key.double().cpu())
    heights = torch.full((rows,), cell, dtype=torch.float64)
    heights[-1] = queries - cell * (rows - 1)
    return sums / heights[:, None], bits / queries


def _gaps(matrix: AttentionMatrix, kind: str, length: int) -> Tensor | None:
    return spectral_gap(matrix).gap[0] if kind == "lln" or length <= GAP_UP_TO else None
