"""Data that is always there: bytes of Python's own library; or what the user names."""

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

MASK_BYTE, VOCABULARY = 256, 257
MOST_BYTES = 4_000_000


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
