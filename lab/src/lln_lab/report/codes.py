"""Attention weights as two bytes each: log2 p from -64 to 0 in 65,533 steps, which keeps p to 0.04 %.

0 stands for no weight (or less than 2^-64), 65,535 for what is no number.
"""

import base64
from typing import Any

import numpy
import numpy.typing

LOWEST = -64.0
STEPS = 65_533
NO_NUMBER = 65_535


def encode(weights: numpy.typing.NDArray[Any]) -> str:
    with numpy.errstate(divide="ignore", invalid="ignore"):
        logs = numpy.log2(weights.astype(numpy.float64))
    codes = numpy.where(logs >= LOWEST, 1 + numpy.rint((numpy.minimum(logs, 0.0) / -LOWEST + 1) * STEPS), 0)
    codes = numpy.where(numpy.isnan(weights), NO_NUMBER, codes)
    return base64.b64encode(codes.astype("<u2").tobytes()).decode()


def decode(codes: str, rows: int, columns: int) -> numpy.typing.NDArray[numpy.float32]:
    found = numpy.frombuffer(base64.b64decode(codes, validate=True), "<u2").astype(numpy.float64)
    if found.size != rows * columns:
        raise ValueError(f"an attention map of {rows} rows and {columns} columns has {found.size} values")
    weights = numpy.exp2(((found - 1) / STEPS - 1) * -LOWEST)
    weights[found == 0], weights[found == NO_NUMBER] = 0.0, numpy.nan
    return weights.astype(numpy.float32).reshape(rows, columns)
