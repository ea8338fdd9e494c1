"""A prompt's cache as a file: one prefix for many continuations, also in another process.

safetensors with a version. Each layer has one or more parts, by what it keeps:

    state        a linear attention's: sums, and the open block
    keys         softmax over all keys, or over those of a window
    recurrence   of a layer that is no attention, or runs one beside it

`read` refuses a file whose layers have other parts than the model's; other shapes are refused when the first tokens come, as
those of any state are.
"""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from lln.hf.attention.cache_layer import LLNCacheLayer
from lln.near_far import NearFarState
from lln.ops.blocks.open_block import OpenBlock
from lln.state import LLNState
from lln.tensor_files import read_tensors, write_tensors

FORMAT, VERSION = "lln-cache", "2"
READ = ("1", "2")  # version 1 knew states alone
KINDS = {"lln": LLNState, "near_far": NearFarState}
PARTS = {"state": LLNCacheLayer, "keys": DynamicLayer, "recurrence": LinearAttentionLayer}


def parts_of(layer: Any) -> list[str]:
    """What a layer keeps, by name."""
    return [name for name, kind in PARTS.items() if isinstance(layer, kind)]


def write(path: Path, layers: list[Any]) -> None:
    tensors: dict[str, Tensor] = {}
    described = []
    for number, layer in enumerate(layers):
        told: dict[str, Any] = {"parts": parts_of(layer)}
        if not told["parts"]:
            raise ValueError(
                f"layer {number} of this cache is a {type(layer).__name__}, which cannot be saved to a file"
            )
        for part in told["parts"]:
            numbers, own = _WRITE[part](layer)
            told |= numbers
            tensors |= {f"{number}.{name}": x for name, x in own.items()}
        described.append(told)
    apart = {name: x.detach().clone() for name, x in tensors.items()}  # views of one memory cannot be saved
    write_tensors(path, apart, {"format": FORMAT, "version": VERSION, "layers": json.dumps(described)})


def read(path: Path, layers: list[Any], device: torch.device) -> None:
    metadata, tensors = read_tensors(path, device)
    if metadata.get("format") != FORMAT or metadata.get("version") not in READ:
        raise ValueError(
            f"{path} is not a saved cache that this release reads ({FORMAT}, version {' or '.join(READ)}): it says "
            f"{metadata.get('format')!r}, version {metadata.get('version')!r}"
        )
    described = json.loads(metadata["layers"])
    if len(described) != len(layers):
        raise ValueError(
            f"{path} holds {len(described)} layers, this model's cache has {len(layers)}: it is of another model"
        )
    for number, (layer, told) in enumerate(zip(layers, described, strict=True)):
        there, wanted = told.get("parts", ["state"]), parts_of(layer)
        if there != wanted:
            raise ValueError(
                f"layer {number} of {path} holds {' and '.join(there)}, this model's keeps {' and '.join(wanted)}: it is of "
                "another model, or other layers were converted"
            )
        own = {name.removeprefix(f"{number}."): x for name, x in tensors.items() if name.startswith(f"{number}.")}
        for part in wanted:
            _READ[part](layer, told, own)


def _write_state(layer: LLNCacheLayer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    kind = next((name for name, of in KINDS.items() if isinstance(layer.state, of)), None)
    tensors = dict(_tensors(layer.state)) if kind else {}
    return {"seen": layer.seen, "kind": kind}, tensors | ({} if layer.full is None else {"full": layer.full})


def _read_state(layer: LLNCacheLayer, told: dict[str, Any], own: dict[str, Tensor]) -> None:
    layer.seen, layer.full = told["seen"], own.pop("full", None)
    layer.state = None if told["kind"] is None else _state(KINDS[told["kind"]], own)
    layer.is_initialized = layer.state is not None


def _write_keys(layer: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    seen = layer.get_seq_length()
    if not seen:
        return {"keys": 0}, {}
    last = -(layer.sliding_window - 1) if layer.is_sliding else 0  # recording keeps more than the window sees
    return {"keys": seen}, {"keys": layer.keys[..., last:, :], "values": layer.values[..., last:, :]}


def _read_keys(layer: Any, told: dict[str, Any], own: dict[str, Tensor]) -> None:
    if told["keys"]:
        layer.lazy_initialization(own["keys"], own["values"])
        layer.keys, layer.values = own.pop("keys"), own.pop("values")
        if layer.is_sliding:
            layer.cumulative_length = told["keys"]


def _write_recurrence(layer: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = {f"recurrent.{i}": x for i, x in layer.recurrent_states.items() if x is not None}
    for i, x in layer.conv_states.items():
        if x is not None:
            tensors[f"conv.{i}"] = x[..., -layer.conv_kernel_size[i] :]
    return {"begun": [bool(layer.has_previous_state[i]) for i in range(layer.number_of_states)]}, tensors


def _read_recurrence(layer: Any, told: dict[str, Any], own: dict[str, Tensor]) -> None:
    for i, begun in enumerate(told["begun"]):
        conv, recurrent = own.pop(f"conv.{i}", None), own.pop(f"recurrent.{i}", None)
        LinearAttentionLayer.lazy_initialization(layer, conv, recurrent, i)
        if conv is not None:
            layer.conv_states[i].copy_(conv)
        if recurrent is not None:
            layer.recurrent_states[i].copy_(recurrent)
        layer.has_previous_state[i] = begun


_WRITE: dict[str, Any] = {"state": _write_state, "keys": _write_keys, "recurrence": _write_recurrence}
_READ: dict[str, Any] = {"recurrence": _read_recurrence, "state": _read_state, "keys": _read_keys}


def _tensors(state: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            yield prefix + field.name, value
        elif is_dataclass(value):
            yield from _tensors(value, f"{prefix}{field.name}.")


def _state(kind: Any, tensors: dict[str, Tensor]) -> Any:
    own = {name for name in tensors if name.split(".")[0] not in ("conv", "recurrent")}
    block = {name.removeprefix("block."): tensors[name] for name in own if name.startswith("block.")}
    plain: dict[str, Any] = {name: tensors[name] for name in own if not name.startswith("block.")}
    return kind(**plain, **({"block": OpenBlock(**block)} if block else {}))
