"""lra/image: CIFAR-10 in grey as a sequence of 1,024 ids. Rows {"input_ids", "label"}."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy

from lln_lab.data import hub, shapes
from lln_lab.data.cache import Arrays, cached
from lln_lab.data.cifar_pickle import read_batch
from lln_lab.data.files import checksums, locate, places
from lln_lab.data.generated import splits
from lln_lab.data.images import HubPictures
from lln_lab.data.missing import missing
from lln_lab.data.pictures import LAYOUTS, decoded_splits, split_paths
from lln_lab.data.pixel_sequences import VOCABULARY, Flattened, PixelSequences, row
from lln_lab.data.task import TaskData

SIZE = 32
CLASSES = 10
FOLDERS = ("cifar-10-batches-py", "cifar10", "cifar-10", "cifar10/cifar-10-batches-py")
TRAINING_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


@dataclass(frozen=True)
class GreyImages:
    name: ClassVar[str] = "lra/image"

    def embedded(self, seed: int) -> TaskData:
        train, validation = splits(_draw, seed, 45_000, 2_000)
        source = f"embedded (generated, not CIFAR-10: one of {len(shapes.NAMES)} shapes)"
        return TaskData(self.name, source, train, validation, len(shapes.NAMES), VOCABULARY)

    def directory(self, folder: Path, cache: Path) -> TaskData:
        """The 10,000 test pictures validate."""
        place, batches = locate(folder, FOLDERS, _batches)
        if place is not None and batches is not None:
            files = checksums(place, [path for part in batches for path in part])
            parts = [_cached(place, part, files, cache) for part in batches]
        else:
            place, paths = locate(folder, FOLDERS, split_paths)
            if place is None or paths is None:
                layouts = f"the python version's data_batch_1 … 5 and test_batch, or {LAYOUTS}"
                raise missing(self.name, places(folder, FOLDERS), layouts, "CIFAR-10's python version, or source='hub'")
            *parts, files = decoded_splits(place, paths, cache, SIZE, "L")
            if (found := len(parts[0]["classes"])) > CLASSES:
                raise ValueError(f"{place} has {found} classes; {self.name} has {CLASSES}, as CIFAR-10")
        train, validation = (PixelSequences(part["pixels"], part["labels"]) for part in parts)
        return TaskData(self.name, str(place), train, validation, CLASSES, VOCABULARY, files)

    def hub(self, repository: str | None) -> TaskData:
        repository = repository or "uoft-cs/cifar10"
        parts = hub.load_splits(self.name, repository, None, "train", "test")
        train, validation = (Flattened(HubPictures(part, SIZE, "L")) for part in parts)
        return TaskData(self.name, f"hub:{repository}", train, validation, CLASSES, VOCABULARY)


def _draw(random: numpy.random.Generator) -> dict[str, Any]:
    label = int(random.integers(len(shapes.NAMES)))
    return row(shapes.draw(random, shapes.NAMES[label], SIZE, 1), label)


def _batches(folder: Path) -> tuple[list[Path], list[Path]] | None:
    train, test = [folder / name for name in TRAINING_BATCHES], [folder / "test_batch"]
    return (train, test) if all(path.is_file() for path in train + test) else None


def _cached(place: Path, part: list[Path], files: dict[str, str], cache: Path) -> Arrays:
    sums = "-".join(files[path.relative_to(place).as_posix()][:12] for path in part)
    return cached(cache, f"cifar-{sums}", partial(_read, part))


def _read(part: list[Path]) -> Arrays:
    read = [read_batch(path) for path in part]
    for path, (pixels, labels) in zip(part, read, strict=True):
        if pixels.shape[1:] != (3 * SIZE * SIZE,) or labels.max() >= CLASSES:
            found = f"pictures of shape {pixels.shape[1:]} and labels up to {labels.max()}"
            raise ValueError(f"{path} has {found}; CIFAR-10 has ({3 * SIZE * SIZE},) and up to {CLASSES - 1}")
    colours = numpy.concatenate([pixels for pixels, _ in read]).reshape(-1, 3, SIZE, SIZE).astype(numpy.uint32)
    weights = numpy.array([19595, 38470, 7471], dtype=numpy.uint32)  # ITU-R 601 in 1/65536, as Pillow's "L"
    grey = (numpy.tensordot(colours, weights, axes=(1, 0)) + 0x8000) >> 16
    labels = numpy.concatenate([labels for _, labels in read])
    return {"pixels": grey.astype(numpy.uint8)[:, None], "labels": labels}
