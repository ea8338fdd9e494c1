"""Text that every Python has: the sources of its own standard library, as bytes or as documents."""

import hashlib
import platform
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

VERSION = platform.python_version()


def documents() -> dict[str, str]:
    """File name -> text of the top-level modules, in the order of their names."""
    return {path.name: path.read_text(encoding="utf-8") for path in _modules()}


def checksum() -> str:
    """sha256 of the modules, one after another: they differ between versions of Python."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in _modules())).hexdigest()


def read_bytes(limit: int = 4_000_000) -> Tensor:
    """(limit,) uint8: the top-level modules, in the order of their names."""
    text = b"".join(path.read_bytes() for path in _modules())
    return torch.frombuffer(bytearray(text[:limit]), dtype=torch.uint8)


def split(text: Tensor, held_out: float = 0.05) -> tuple[Tensor, Tensor]:
    """Training text and, from its end, validation text."""
    at = int(len(text) * (1 - held_out))
    return text[:at], text[at:]


def windows(text: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """(count, length) int64: windows that start anywhere."""
    starts = torch.randint(0, len(text) - length, (count,), generator=generator)
    return torch.stack([text[start : start + length] for start in starts.tolist()]).long()


def _modules() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    found = sorted(root.glob("*.py"))
    if not found:
        raise FileNotFoundError(f"this Python has no sources of its standard library in {root}")
    return found
