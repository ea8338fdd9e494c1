"""Rows {"input_ids", "label"} of grey pictures, read line by line: brightness g is id g + 1, so that 0 stays padding."""

from typing import Any

import numpy

from lln_lab.data.generated import ids
from lln_lab.data.task import Rows

VOCABULARY = 257


def row(pixels: numpy.ndarray, label: int) -> dict[str, Any]:
    return {"input_ids": ids(pixels.reshape(-1)) + 1, "label": label}


class PixelSequences:
    """Of uint8 pixels (N, 1, height, width) and labels (N,)."""

    def __init__(self, pixels: numpy.ndarray, labels: numpy.ndarray) -> None:
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return row(self.pixels[index], int(self.labels[index]))


class Flattened:
    """Of rows with an "image"."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        found = self.rows[index]
        return row(found["image"].numpy(), found["label"])
