"""Pictures of tar files or folders, the class being the folder that a picture is in, decoded once into uint8 arrays."""

import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy
import torch

from lln_lab.data.cache import Arrays, cached
from lln_lab.data.files import VALIDATION, checksums

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
ARCHIVES = (".tar", ".tar.xz", ".tar.gz", ".tgz", ".tar.bz2")
DAMAGED = (tarfile.TarError, EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
UNREADABLE = (OSError, SyntaxError, ValueError)  # what Pillow raises at damaged files
LAYOUTS = "train and test as tar files (train.tar, train.tar.xz, …) or folders, with split/class/picture.jpg inside"


class Pictures:
    """Rows {"image": uint8 (3, size, size), "label"}."""

    def __init__(self, pixels: numpy.ndarray, labels: numpy.ndarray) -> None:
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.from_numpy(numpy.array(self.pixels[index])), "label": int(self.labels[index])}


def split_paths(folder: Path) -> tuple[Path, Path] | None:
    """Where the training and the validation pictures are; a test split stands in for a missing validation split."""
    train, validation = _split_path(folder, ("train",)), _split_path(folder, VALIDATION)
    return (train, validation) if train and validation else None


def _split_path(folder: Path, names: tuple[str, ...]) -> Path | None:
    for name in names:
        for path in (folder / f"{name}{ending}" for ending in ARCHIVES):
            if path.is_file():
                return path
        if (folder / name).is_dir():
            return folder / name
    return None


def decoded_splits(
    folder: Path, paths: tuple[Path, Path], cache: Path, size: int, mode: str
) -> tuple[Arrays, Arrays, dict[str, str]]:
    """Arrays "pixels" (N, channels, size, size), "labels" (N,) and "classes" of both splits, and the checksums."""
    files = checksums(folder, paths)
    train, validation = (
        cached(cache, f"pictures-{mode}-{size}-{sha[:32]}", partial(decode, path, size, mode))
        for path, sha in zip(paths, files.values(), strict=True)
    )
    for path, part in zip(paths, (train, validation), strict=True):
        if len(part["classes"]) < 2:
            found = f"{path} has one class only, {part['classes'][0]!s}"
            raise ValueError(f"{found}; expected at least two, each a folder of pictures: {LAYOUTS}")
    if train["classes"].tolist() != validation["classes"].tolist():
        raise ValueError(f"{paths[0].name} has the classes {train['classes']}, {paths[1].name} {validation['classes']}")
    return train, validation, files


def decode(path: Path, size: int, mode: str) -> Arrays:
    """Centre crops, resized. `mode` is Pillow's: "RGB" or "L"."""
    pixels, names = [], []
    for name, picture, content in _contents(path):
        try:
            pixels.append(to_pixels(content, size, mode))
        except UNREADABLE as reason:
            told = f"{picture} of {path} (class {name}) is damaged: remove or replace it ({reason})"
            raise ValueError(told) from None
        names.append(name)
    if not pixels:
        raise ValueError(f"{path} contains no pictures; expected: {LAYOUTS}")
    classes = sorted(set(names))
    labels = numpy.array([classes.index(name) for name in names], dtype=numpy.int64)
    return {"pixels": numpy.stack(pixels), "labels": labels, "classes": numpy.array(classes)}


def to_pixels(content: Any, size: int, mode: str) -> numpy.ndarray:
    """(channels, size, size) uint8 of the bytes of a picture, or of a picture of Pillow."""
    from PIL import Image, ImageOps

    picture = Image.open(io.BytesIO(content)) if isinstance(content, bytes) else content
    picture = picture.convert(mode)
    if picture.size != (size, size):
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
    return numpy.asarray(picture).reshape(size, size, -1).transpose(2, 0, 1).copy()


def _contents(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """(class, name of the file, its bytes)."""
    if path.is_dir():
        for file in sorted(path.glob("*/*")):
            if file.suffix.lower() in PICTURES:
                yield file.parent.name, file.name, file.read_bytes()
        return
    try:
        yield from _members(path)
    except DAMAGED as reason:
        raise ValueError(f"{path} is truncated or damaged: {reason}. Download it again") from reason


def _members(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """An archive is read front to back: seeking in a compressed one decompresses it again."""
    with tarfile.open(path) as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            content = archive.extractfile(member) if name.suffix.lower() in PICTURES else None
            if content is not None:
                yield name.parent.name, name.name, content.read()
        if not _has_ended(archive):
            raise tarfile.ReadError(f"its end mark is missing after {len(archive.getmembers()):,} members")


def _has_ended(archive: tarfile.TarFile) -> bool:
    """Whether all members were followed by the end mark, blocks of zeros.

    `tarfile` also stops without a word where the file ends between two members, inside a header, or where a header is broken.
    It has just read the block at `offset`: a whole one, unless the file ends there, and after the first block of zeros there
    is nothing but zeros.
    """
    file = archive.fileobj
    assert file is not None
    return file.tell() - archive.offset == tarfile.BLOCKSIZE and not any(file.read(tarfile.BLOCKSIZE))
