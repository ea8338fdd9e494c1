"""Named tensors with metadata as one safetensors file, whole or not at all, and what tells tensors apart."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.writing import whole


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> Path:
    """Written aside and renamed, so that an interruption leaves the file that was there before."""
    with whole(Path(path)) as aside:
        _safetensors().torch.save_file(
            {name: x.detach().contiguous().cpu() for name, x in tensors.items()}, aside, metadata
        )
    return Path(path)


def read_tensors(path: str | Path, device: torch.device | str = "cpu") -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors. Numbers only: nothing in the file is run."""
    library = _safetensors()
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with library.safe_open(str(path), framework="pt", device=str(device)) as file:
            names = list(file.keys())
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except library.SafetensorError as reason:
        raise ValueError(f"{path} is damaged or not a safetensors file ({reason})") from None


def digest(labelled: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over labels and bytes."""
    found = hashlib.sha256()
    for label, x in labelled:
        found.update(label.encode())
        found.update(x.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as missing:
        raise ImportError("tensors are saved as safetensors: pip install safetensors") from missing
    return safetensors
