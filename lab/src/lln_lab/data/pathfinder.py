"""lra/pathfinder: does a dashed curve connect two discs? Rows {"input_ids", "label"}: grey pixels, line by line."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy

from lln_lab.data import curves, hub
from lln_lab.data.cache import Arrays, cached
from lln_lab.data.files import checksums, locate, places, read_utf8
from lln_lab.data.generated import splits
from lln_lab.data.missing import missing
from lln_lab.data.pictures import to_pixels
from lln_lab.data.pixel_sequences import VOCABULARY, PixelSequences, row
from lln_lab.data.task import TaskData

RELEASED = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}


@dataclass(frozen=True)
class Pathfinder:
    size: int = 32
    dashes: int = curves.DASHES  # of a long curve; the release has 6 (easy), 9 and 14 (hard), generated pictures have 6

    name: ClassVar[str] = "lra/pathfinder"

    def __post_init__(self) -> None:
        if self.size < 32 or self.dashes not in RELEASED:
            known = ", ".join(map(str, RELEASED))
            raise ValueError(
                f"the size must be at least 32, the dashes one of {known}; got {self.size} and {self.dashes}"
            )

    def embedded(self, seed: int) -> TaskData:
        if self.dashes != curves.DASHES:
            raise ValueError(
                f"generated pictures have curves of {curves.DASHES} dashes; with {self.dashes} the places of the discs would "
                "give the label away: name a folder with the Long Range Arena's release"
            )
        train, validation = splits(self._row, seed, 160_000, 2_000)
        source = f"embedded (generated as described: curves of {self.dashes} dashes)"
        return TaskData(self.name, source, train, validation, 2, VOCABULARY)

    def directory(self, folder: Path, cache: Path) -> TaskData:
        """As the Long Range Arena splits it: the first 80 % are for training, the next 10 % for validation."""
        released = f"pathfinder{self.size}/{RELEASED[self.dashes]}"
        folders = [f"{above}{released}" for above in ("", "lra_release/", "lra_release/lra_release/")]
        place, lists = locate(folder, folders, _lists)
        if place is None or lists is None:
            layouts = "metadata/*.npy and imgs/*/sample_*.png of the release, in pathfinder32/curv_…"
            raise missing(self.name, places(folder, folders), layouts, "lra_release.gz of the Long Range Arena")
        files = checksums(
            place, [place / "metadata"]
        )  # it names the pictures; reading 200,000 each time would take long
        arrays = cached(
            cache, f"pathfinder-{self.size}-{files['metadata'][:32]}", partial(_decode, place, lists, self.size)
        )
        pixels, labels = arrays["pixels"], arrays["labels"]
        a, b = int(0.8 * len(labels)), int(0.9 * len(labels))
        train, validation = PixelSequences(pixels[:a], labels[:a]), PixelSequences(pixels[a:b], labels[a:b])
        return TaskData(self.name, str(place), train, validation, 2, VOCABULARY, files)

    def hub(self, repository: str | None) -> TaskData:
        raise hub.no_hub(self.name)

    def _row(self, random: numpy.random.Generator) -> dict[str, Any]:
        label = int(random.integers(2))
        return row(curves.draw(random, label, self.size), label)


def _lists(folder: Path) -> list[Path] | None:
    """The lists of the pictures: text, for all that they are called .npy."""
    found = sorted((folder / "metadata").glob("*.npy"), key=lambda path: (len(path.name), path.name))
    return found or None


def _decode(folder: Path, lists: list[Path], size: int) -> Arrays:
    """Lines `folder file number label …`; the release has an empty picture, which is left out."""
    pixels, labels = [], []
    for path in lists:
        for number, line in enumerate(read_utf8(path).splitlines(), 1):
            columns = line.split(" ")
            if len(columns) < 4 or columns[3] not in ("0", "1"):
                raise ValueError(
                    f"{path}, line {number}: expected folder, file, number and label (0 or 1); got {line!r}"
                )
            below, name, _, label, *_ = columns
            if content := (folder / below / name).read_bytes():
                pixels.append(to_pixels(content, size, "L"))
                labels.append(int(label))
    if not pixels:
        raise ValueError(f"{folder / 'metadata'} lists no non-empty picture")
    return {"pixels": numpy.stack(pixels), "labels": numpy.array(labels, dtype=numpy.uint8)}
