"""Attention maps: matrices of one input for several attentions, packed for the page.

Maps that would fill more than BYTES are made coarser: a cell is then the sum over its keys and the mean over its queries, so
that rows still sum to one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import numpy.typing

from lln_lab.names import name_of
from lln_lab.report.codes import decode, encode

Matrix = numpy.typing.NDArray[numpy.float32]

BYTES = 4_000_000


@dataclass(frozen=True)
class Map:
    label: str
    layer: str
    head: str
    matrix: Matrix
    text: str | list[str] | None = None
    cell: int = 1  # tokens along a side of one cell
    length: int | None = None  # tokens; None: one for each column
    block_size: int | None = None  # of LLN+Diag: its blocks are drawn
    entropy: float | None = None  # of the whole matrix, in bits
    gap: float | None = None


@dataclass(frozen=True)
class Maps:
    title: str
    maps: list[Map]

    def as_data(self) -> dict[str, Any]:
        finer = self._coarser_by()
        cell = finer * max(one.cell for one in self.maps)
        note = (
            f"Each cell stands for {cell} × {cell} tokens: the sum over keys, the mean over queries."
            if cell > 1
            else ""
        )
        first = next((one for one in self.maps if one.text), self.maps[0])
        length = first.length or first.matrix.shape[1]
        return {
            "title": self.title,
            "note": note,
            "cell": cell,
            "length": length,
            "tokens": _tokens(first.text, length),
            "text": " ".join(map(str, first.text)) if isinstance(first.text, list) else first.text,
            "maps": [_packed(one, finer) for one in self.maps],
        }

    def _coarser_by(self) -> int:
        """The smallest number of cells to put together with which all maps fit."""
        cell = 1
        while sum(_coarse_size(one.matrix, cell) for one in self.maps) > BYTES and cell < 64:
            cell += 1
        return cell


def read_map(entry: dict[str, Any]) -> Map:
    """An entry of a result's "maps"; ValueError when its matrix is none."""
    try:
        if "codes" in entry:
            matrix = decode(entry["codes"], entry["rows"], entry["columns"])
        else:
            matrix = numpy.array(entry["matrix"], dtype=numpy.float32)  # null becomes NaN
    except (KeyError, TypeError, ValueError):
        raise ValueError("an attention map has no matrix of numbers") from None
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"an attention map must be a matrix, but its shape is {matrix.shape}")
    label = name_of(str(entry.get("label") or entry.get("attention") or "attention"))
    return Map(
        label, str(entry.get("layer", 0)), str(entry.get("head", 0)), matrix, entry.get("text"),
        int(entry.get("cell") or 1), entry.get("length"), entry.get("block_size"), entry.get("entropy"), entry.get("gap"),
    )  # fmt: skip


def coarser(matrix: Matrix, cell: int) -> Matrix:
    """Sum over keys and mean over queries in cells; the last cells may be smaller."""
    rows, columns = (range(0, size, cell) for size in matrix.shape)
    summed = numpy.add.reduceat(numpy.add.reduceat(matrix, list(rows), axis=0), list(columns), axis=1)
    heights = [min(cell, matrix.shape[0] - start) for start in rows]
    return (summed / numpy.array(heights)[:, None]).astype(numpy.float32)


def _coarse_size(matrix: Matrix, cell: int) -> float:
    return -(-matrix.shape[0] // cell) * -(-matrix.shape[1] // cell) * 2 * 4 / 3


def _packed(one: Map, finer: int) -> dict[str, Any]:
    matrix = coarser(one.matrix, finer) if finer > 1 else one.matrix
    return {
        "label": one.label,
        "layer": one.layer,
        "head": one.head,
        "rows": matrix.shape[0],
        "columns": matrix.shape[1],
        "values": encode(matrix),
        "block": one.block_size,
        "entropy": one.entropy,
        "gap": one.gap,
    }


def _tokens(text: str | Sequence[str] | None, length: int) -> list[str] | None:
    """The tokens of a text, where there are as many as keys."""
    tokens = text.split() if isinstance(text, str) else [str(token) for token in text or ()]
    return tokens if len(tokens) == length else None
