"""dogs_vs_cats: pictures of two classes. Rows {"image": uint8 (3, size, size), "label"}."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy
import torch

from lln_lab.data import hub, shapes
from lln_lab.data.files import locate, places
from lln_lab.data.generated import splits
from lln_lab.data.missing import missing
from lln_lab.data.pictures import LAYOUTS, Pictures, decoded_splits, split_paths, to_pixels
from lln_lab.data.task import TaskData

FOLDERS = ("dogs-vs-cats", "dogs_vs_cats", "dogsvscats")
USUAL = "microsoft/cats_vs_dogs"
TWO = ("square", "cross")  # of the same area


@dataclass(frozen=True)
class Images:
    size: int = 64

    name: ClassVar[str] = "dogs_vs_cats"

    def embedded(self, seed: int) -> TaskData:
        train, validation = splits(self._draw, seed, 20_000, 2_000)
        source = f"embedded (generated, not dogs and cats: a {TWO[0]} or a {TWO[1]} in any colours)"
        return TaskData(self.name, source, train, validation, len(TWO))

    def directory(self, folder: Path, cache: Path) -> TaskData:
        place, paths = locate(folder, FOLDERS, split_paths)
        if place is None or paths is None:
            get = "Kaggle's dogs-vs-cats, sorted into folders by class, or source='hub'"
            raise missing(self.name, places(folder, FOLDERS), LAYOUTS, get)
        train, validation, files = decoded_splits(place, paths, cache, self.size, "RGB")
        rows, held_out = (Pictures(part["pixels"], part["labels"]) for part in (train, validation))
        return TaskData(self.name, str(place), rows, held_out, len(train["classes"]), files=files)

    def hub(self, repository: str | None) -> TaskData:
        """The usual repository has one split only: every tenth picture is for validation."""
        repository = repository or USUAL
        if repository == USUAL:
            (whole,) = hub.load_splits(self.name, repository, None, "train")
            parts = [whole.select([i for i in range(len(whole)) if (i % 10 == 0) == held]) for held in (False, True)]
        else:
            parts = hub.load_splits(self.name, repository, None, "train", "test")
        train, validation = (HubPictures(part, self.size, "RGB") for part in parts)
        return TaskData(self.name, f"hub:{repository}", train, validation, len(TWO))

    def _draw(self, random: numpy.random.Generator) -> dict[str, Any]:
        label = int(random.integers(len(TWO)))
        return {"image": torch.from_numpy(shapes.draw(random, TWO[label], self.size, 3)), "label": label}


class HubPictures:
    """A `datasets.Dataset` with a column of pictures and a column of labels, decoded row by row."""

    def __init__(self, table: Any, size: int, mode: str) -> None:
        from datasets import Image

        self.table, self.size, self.mode = table, size, mode
        self.picture = _column(table, [name for name, kind in table.features.items() if isinstance(kind, Image)])
        self.label = _column(table, [name for name in table.features if name in ("label", "labels")])

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.table[index]
        pixels = to_pixels(row[self.picture], self.size, self.mode)
        return {"image": torch.from_numpy(pixels), "label": int(row[self.label])}


def _column(table: Any, fitting: list[str]) -> str:
    if len(fitting) != 1:
        raise ValueError(f"expected one column of pictures and one of labels; the columns are {table.features}")
    return fitting[0]
