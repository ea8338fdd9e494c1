"""Text that every Python has: the sources of its own standard library, read as bytes."""

import sysconfig
from pathlib import Path

import torch
from torch import Tensor


def read_bytes(limit: int = 4_000_000) -> Tensor:
    """(limit,) uint8: the top-level modules of the standard library, in the order of their names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(root.glob("*.py")))
    if not text:
        raise FileNotFoundError(f"this Python has no sources of its standard library in {root}")
    return torch.frombuffer(bytearray(text[:limit]), dtype=torch.uint8)


def split(text: Tensor, held_out: float = 0.05) -> tuple[Tensor, Tensor]:
    """Training text and, from its end, validation text."""
    at = int(len(text) * (1 - held_out))
    return text[:at], text[at:]


def windows(text: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """(count, length) int64: windows that start anywhere."""
    starts = torch.randint(0, len(text) - length, (count,), generator=generator)
    return torch.stack([text[start : start + length] for start in starts.tolist()]).long()
