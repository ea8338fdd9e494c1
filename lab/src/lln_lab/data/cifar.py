"""CIFAR-10, in colours and in grey.

cifar10     pictures: rows {"image": uint8 (3, 32, 32), "label"}
lra/image   the grey picture as a sequence of 1,024 ids: rows {"input_ids", "label"}
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy
import torch

from lln_lab.data import hub, shapes
from lln_lab.data.cache import Arrays, cached
from lln_lab.data.cifar_pickle import read_batch
from lln_lab.data.files import checksums, locate, places
from lln_lab.data.generated import splits
from lln_lab.data.images import HubPictures
from lln_lab.data.missing import missing
from lln_lab.data.pictures import LAYOUTS, Pictures, decoded_splits, split_paths
from lln_lab.data.pixel_sequences import VOCABULARY, Flattened, PixelSequences, row
from lln_lab.data.task import TaskData

SIZE = 32
CLASSES = 10
FOLDERS = ("cifar-10-batches-py", "cifar10", "cifar-10", "cifar10/cifar-10-batches-py")
USUAL = "uoft-cs/cifar10"
TRAINING_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
GENERATED = f"embedded (generated, not CIFAR-10: one of {len(shapes.NAMES)} shapes)"


@dataclass(frozen=True)
class ColourImages:
    name: ClassVar[str] = "cifar10"

    def embedded(self, seed: int) -> TaskData:
        train, validation = splits(_draw_in_colour, seed, 45_000, 2_000)
        return TaskData(self.name, GENERATED, train, validation, len(shapes.NAMES))

    def directory(self, folder: Path, cache: Path) -> TaskData:
        """The 10,000 test pictures validate."""
        place, parts, files = _parts(self.name, folder, cache, "RGB")
        train, validation = (Pictures(part["pixels"], part["labels"]) for part in parts)
        return TaskData(self.name, str(place), train, validation, CLASSES, files=files)

    def hub(self, repository: str | None) -> TaskData:
        repository = repository or USUAL
        parts = hub.load_splits(self.name, repository, None, "train", "test")
        train, validation = (HubPictures(part, SIZE, "RGB") for part in parts)
        return TaskData(self.name, f"hub:{repository}", train, validation, CLASSES)


@dataclass(frozen=True)
class GreyImages:
    name: ClassVar[str] = "lra/image"

    def embedded(self, seed: int) -> TaskData:
        train, validation = splits(_draw, seed, 45_000, 2_000)
        return TaskData(self.name, GENERATED, train, validation, len(shapes.NAMES), VOCABULARY)

    def directory(self, folder: Path, cache: Path) -> TaskData:
        """The 10,000 test pictures validate."""
        place, parts, files = _parts(self.name, folder, cache, "L")
        train, validation = (PixelSequences(part["pixels"], part["labels"]) for part in parts)
        return TaskData(self.name, str(place), train, validation, CLASSES, VOCABULARY, files)

    def hub(self, repository: str | None) -> TaskData:
        repository = repository or USUAL
        parts = hub.load_splits(self.name, repository, None, "train", "test")
        train, validation = (Flattened(HubPictures(part, SIZE, "L")) for part in parts)
        return TaskData(self.name, f"hub:{repository}", train, validation, CLASSES, VOCABULARY)


def _parts(name: str, folder: Path, cache: Path, mode: str) -> tuple[Path, list[Arrays], dict[str, str]]:
    """Where the set is, its two splits decoded as Pillow's `mode` says, and the checksums."""
    place, batches = locate(folder, FOLDERS, _batches)
    if place is not None and batches is not None:
        files = checksums(place, [path for part in batches for path in part])
        return place, [_cached(place, part, files, cache, mode) for part in batches], files
    place, paths = locate(folder, FOLDERS, split_paths)
    if place is None or paths is None:
        layouts = f"the python version's data_batch_1 … 5 and test_batch, or {LAYOUTS}"
        raise missing(name, places(folder, FOLDERS), layouts, "CIFAR-10's python version, or source='hub'")
    *parts, files = decoded_splits(place, paths, cache, SIZE, mode)
    if (found := len(parts[0]["classes"])) > CLASSES:
        raise ValueError(f"{place} has {found} classes; {name} has {CLASSES}, as CIFAR-10")
    return place, parts, files


def _draw_in_colour(random: numpy.random.Generator) -> dict[str, Any]:
    label = int(random.integers(len(shapes.NAMES)))
    return {"image": torch.from_numpy(shapes.draw(random, shapes.NAMES[label], SIZE, 3)), "label": label}


def _draw(random: numpy.random.Generator) -> dict[str, Any]:
    label = int(random.integers(len(shapes.NAMES)))
    return row(shapes.draw(random, shapes.NAMES[label], SIZE, 1), label)


def _batches(folder: Path) -> tuple[list[Path], list[Path]] | None:
    train, test = [folder / name for name in TRAINING_BATCHES], [folder / "test_batch"]
    return (train, test) if all(path.is_file() for path in train + test) else None


def _cached(place: Path, part: list[Path], files: dict[str, str], cache: Path, mode: str) -> Arrays:
    sums = "-".join(files[path.relative_to(place).as_posix()][:12] for path in part)
    kind = "cifar" if mode == "L" else f"cifar-{mode}"
    return cached(cache, f"{kind}-{sums}", partial(_read, part, mode))


def _read(part: list[Path], mode: str) -> Arrays:
    read = [read_batch(path) for path in part]
    for path, (pixels, labels) in zip(part, read, strict=True):
        if pixels.shape[1:] != (3 * SIZE * SIZE,) or labels.max() >= CLASSES:
            found = f"pictures of shape {pixels.shape[1:]} and labels up to {labels.max()}"
            raise ValueError(f"{path} has {found}; CIFAR-10 has ({3 * SIZE * SIZE},) and up to {CLASSES - 1}")
    colours = numpy.concatenate([pixels for pixels, _ in read]).reshape(-1, 3, SIZE, SIZE)
    labels = numpy.concatenate([labels for _, labels in read])
    return {"pixels": colours if mode == "RGB" else _grey(colours), "labels": labels}


def _grey(colours: numpy.ndarray) -> numpy.ndarray:
    """(N, 3, 32, 32) -> (N, 1, 32, 32), as Pillow's "L"."""
    weights = numpy.array([19595, 38470, 7471], dtype=numpy.uint32)  # ITU-R 601 in 1/65536
    grey = (numpy.tensordot(colours.astype(numpy.uint32), weights, axes=(1, 0)) + 0x8000) >> 16
    return grey.astype(numpy.uint8)[:, None]
