"""A prompt's state as a file: one prefix for many continuations, also in another process.

safetensors with a version; `load` is refused by another model's shapes when the first tokens come, as any state is.
"""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.near_far import NearFarState
from lln.ops.blocks.open_block import OpenBlock
from lln.state import LLNState
from lln.writing import whole

FORMAT, VERSION = "lln-cache", "1"
KINDS = {"lln": LLNState, "near_far": NearFarState}


def write(path: Path, layers: list[Any]) -> None:
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    described = []
    for number, layer in enumerate(layers):
        kind = next((name for name, of in KINDS.items() if isinstance(layer.state, of)), None)
        described.append({"seen": layer.seen, "kind": kind})
        tensors |= {f"{number}.{name}": x for name, x in _tensors(layer.state)} if kind else {}
        if layer.full is not None:
            tensors[f"{number}.full"] = layer.full
    kept = {name: x.detach().contiguous().clone() for name, x in tensors.items()}
    with whole(path) as aside:
        save_file(kept, aside, {"format": FORMAT, "version": VERSION, "layers": json.dumps(described)})


def read(path: Path, layers: list[Any], device: torch.device) -> None:
    import safetensors

    try:
        with safetensors.safe_open(str(path), framework="pt", device=str(device)) as file:
            metadata, names = file.metadata() or {}, list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
    except safetensors.SafetensorError as reason:
        raise ValueError(f"{path} is damaged or not a safetensors file ({reason})") from None
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        raise ValueError(
            f"{path} is not a saved cache that this release reads ({FORMAT}, version {VERSION}): it says "
            f"{metadata.get('format')!r}, version {metadata.get('version')!r}"
        )
    described = json.loads(metadata["layers"])
    if len(described) != len(layers):
        raise ValueError(
            f"{path} holds {len(described)} layers, this model's cache has {len(layers)}: it is of another model"
        )
    for number, (layer, told) in enumerate(zip(layers, described, strict=True)):
        own = {name.removeprefix(f"{number}."): x for name, x in tensors.items() if name.startswith(f"{number}.")}
        layer.seen, layer.full = told["seen"], own.pop("full", None)
        layer.state = None if told["kind"] is None else _state(KINDS[told["kind"]], own)
        layer.is_initialized = layer.state is not None


def _tensors(state: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            yield prefix + field.name, value
        elif is_dataclass(value):
            yield from _tensors(value, f"{prefix}{field.name}.")


def _state(kind: Any, tensors: dict[str, Tensor]) -> Any:
    block = {name.removeprefix("block."): x for name, x in tensors.items() if name.startswith("block.")}
    plain: dict[str, Any] = {name: x for name, x in tensors.items() if not name.startswith("block.")}
    return kind(**plain, **({"block": OpenBlock(**block)} if block else {}))
