"""Data that is always there: bytes of Python's own library, and pictures of stripes; or what the user names."""

import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeVar

import torch
from torch import Tensor

MASK_BYTE, VOCABULARY = 256, 257
MOST_BYTES = 4_000_000
Item = TypeVar("Item")
PICTURES = (".jpg", ".jpeg", ".png", ".bmp")


def text_bytes(source: Path | None = None) -> Tensor:
    """A text file, all *.txt and *.py below a folder, or the modules of Python's standard library, as one run of bytes."""
    if source is None:
        paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    elif source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.suffix in (".txt", ".py"))
    elif source.is_file():
        paths = [source]
    else:
        raise FileNotFoundError(f"--data names {source}, which is neither a file nor a folder")
    if not paths:
        raise FileNotFoundError(f"no .txt or .py file below {source}")
    content = bytearray()
    for path in paths:
        content += path.read_bytes()
        if len(content) >= MOST_BYTES:
            break
    return torch.frombuffer(content, dtype=torch.uint8).long()


def masked_bytes(text: Tensor, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random windows with 15 % of the bytes hidden, and the bytes to guess (-100 where there is nothing to guess)."""
    if len(text) <= length:
        raise ValueError(f"the text has {len(text)} bytes; windows of {length} need more")
    starts = torch.randint(len(text) - length, (batch,), generator=generator)
    windows = text[starts[:, None] + torch.arange(length)]
    hidden = torch.rand(windows.shape, generator=generator) < 0.15
    return windows.masked_fill(hidden, MASK_BYTE), windows.masked_fill(~hidden, -100)


class Stripes:
    """Two classes of noisy pictures: stripes closer to upright, and stripes closer to level."""

    def __init__(self, size: int) -> None:
        self.size = size

    def batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.randint(2, (count,), generator=generator)
        draw = torch.rand(count, 4, generator=generator)
        angle = (labels * 0.5 + (draw[:, 0] - 0.5) * 0.4) * torch.pi
        frequency = 2 + 4 * draw[:, 1]
        across = torch.linspace(0, 1, self.size)
        u = angle.cos()[:, None, None] * across + angle.sin()[:, None, None] * across[:, None]  # (count, size, size)
        waves = torch.sin(2 * torch.pi * (frequency[:, None, None] * u + draw[:, 2, None, None]))
        colours = torch.rand(count, 3, 1, 1, generator=generator)
        noise = torch.randn(count, 3, self.size, self.size, generator=generator)
        return colours * waves[:, None] + 0.7 * noise, labels


class Pictures:
    """Pictures of a folder or tar file, the class being the name of the folder each one is in."""

    def __init__(self, source: Path, size: int, most: int = 4000) -> None:
        try:
            from PIL import Image
        except ImportError as missing:
            raise ImportError("pictures need Pillow: pip install lln-lab") from missing
        self.size = size
        pixels: list[Tensor] = []
        names: list[str] = []
        for name, file in _picture_files(source, most):
            try:
                with Image.open(file) as picture:
                    small = picture.convert("RGB").resize((size, size))
            except OSError as reason:  # Pillow's, for a file that is damaged or cut short
                told = (
                    f"picture {len(pixels) + 1} of {source} (class {name}) is damaged: remove or replace it ({reason})"
                )
                raise ValueError(told) from None
            pixels.append(torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(size, size, 3))
            names.append(name)
        self.classes = sorted(set(names))
        if len(self.classes) < 2:
            raise ValueError(f"{source} holds pictures of {len(self.classes)} classes; at least two folders are needed")
        self.pixels = torch.stack(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1  # (count, 3, size, size)
        self.labels = torch.tensor([self.classes.index(name) for name in names])

    def batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(self.labels), (count,), generator=generator)
        return self.pixels[chosen], self.labels[chosen]


def _picture_files(source: Path, most: int) -> Iterator[tuple[str, IO[bytes]]]:
    """(class, open file) pairs, evenly spread over what is there."""
    if source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in PICTURES)
        for path in _spread(paths, most):
            with path.open("rb") as file:
                yield path.parent.name, file
    elif source.is_file():
        with tarfile.open(source) as archive:
            members = [m for m in archive.getmembers() if m.isfile() and Path(m.name).suffix.lower() in PICTURES]
            for member in _spread(sorted(members, key=lambda member: member.name), most):
                picture = archive.extractfile(member)
                assert picture is not None
                with picture:
                    yield Path(member.name).parent.name, picture
    else:
        raise FileNotFoundError(f"--data names {source}, which is neither a folder nor a tar file")


def _spread(items: list[Item], most: int) -> list[Item]:
    step = max(1, -(-len(items) // most))
    return items[::step]
