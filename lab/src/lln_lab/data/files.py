"""Finding a set below the directory that the user names, and the checksums of what was read."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

VALIDATION = ("valid", "validation", "val", "dev", "test")  # by preference; the splits that have labels in these sets


def places(source: Path, folders: Sequence[str]) -> list[Path]:
    """The directory itself, and the folders below it that usually hold the set."""
    return [source, *(source / folder for folder in folders)]


def locate(
    source: Path, folders: Sequence[str], layout: Callable[[Path], Found | None]
) -> tuple[Path, Found] | tuple[None, None]:
    """The first place where `layout` finds something, and what it found."""
    for place in places(source, folders):
        found = layout(place) if place.is_dir() else None
        if found is not None:
            return place, found
    return None, None


def first_file(folder: Path, names: Iterable[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


@contextmanager
def utf8_of(path: Path) -> Iterator[None]:
    """Text that is not UTF-8 is refused with the name of its file, which Python's own error does not know."""
    try:
        yield
    except UnicodeDecodeError as reason:
        byte = f"the byte 0x{reason.object[reason.start]:02x}, {reason.reason}"
        raise ValueError(f"{path} is not UTF-8 ({byte}); save it as UTF-8") from reason


def read_utf8(path: Path) -> str:
    with utf8_of(path):
        return path.read_text(encoding="utf-8")


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def checksums(folder: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Path relative to `folder` -> sha256 of the file; of a folder, the sha256 of its own table of checksums."""
    return {path.relative_to(folder).as_posix(): _sha256_of(path) for path in paths}


def _sha256_of(path: Path) -> str:
    if path.is_file():
        return sha256(path)
    table = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        table.update(f"{sha256(file)}  {file.relative_to(path).as_posix()}\n".encode())
    return table.hexdigest()
