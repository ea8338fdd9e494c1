"""A conversion as a small file, apart from the model: learned numbers, and what training changed in the model's own weights.

    save_conversion(converted, base, "file.safetensors")      once, by whoever trained it
    convert(base, weights="file.safetensors")                 by everybody else, in a second, without data

The file holds config.lln, the numbers of each attention module (`LLNParameters`), and for each weight W that differs from the
base model's the change, whole or of low rank:  W = W_base + D,  or  W_base + A B  with A B nearest to D (its singular vectors).
A map M of each key head, folded into the projections of q and k, is kept as M and folded when the file is used.
It belongs to weights with one hash, and is refused for others. safetensors hold numbers only: nothing in the file is run.
`lln.conversion.files` has another format, because a conversion of any torch model has sites to describe and changes no weights.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.hf.conversion.attach import attach_described, by_config, detach
from lln.hf.conversion.folding import fold_into_projections
from lln.hf.modules import Model
from lln.hf.options import LLNOptions
from lln.tensor_files import digest, read_tensors, write_tensors

FORMAT, VERSION = "lln-hf-conversion", 1
PRECISIONS = {"float32": torch.float32, "float16": torch.float16}
CHANGE, LEFT, RIGHT, MAP = "change:", "left:", "right:", "map:"


def save_conversion(
    model: Any, base: Any, path: str | Path, *, precision: str = "float16", rank: int | None = None
) -> Path:
    """Write what makes `base`, the softmax model as it was published, into `model`, which was converted and trained from it.

    precision: of the changes to the model's own weights; alpha, beta and weights of heads are float32 always.
    rank: of those changes to matrices, if they are to be kept small; None keeps them whole.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(map(repr, PRECISIONS))}, got {precision!r}")
    if not _ours(model):
        raise ValueError("this model was not converted by lln.hf.convert: there is nothing to save")
    if _ours(base):
        raise ValueError("base is converted itself: give the softmax model as it was published")
    dtype, tensors, own = PRECISIONS[precision], dict(_ours(model)), base.state_dict()
    for name, x in model.state_dict().items():
        if name in tensors:
            continue
        if name not in own or own[name].shape != x.shape:
            raise ValueError(f"base is another model: it has no {name} of size {tuple(x.shape)}")
        change = (x.double() - own[name].double()).cpu()
        if not change.any():
            continue
        if rank is None or change.dim() != 2 or rank * sum(change.shape) >= change.numel():
            tensors[CHANGE + name] = change.to(dtype)
        else:
            left, values, right = torch.linalg.svd(change, full_matrices=False)
            root = values[:rank].sqrt()
            tensors[LEFT + name], tensors[RIGHT + name] = (
                (left[:, :rank] * root).to(dtype),
                (root[:, None] * right[:rank]).to(dtype),
            )
    return write_conversion(path, base, [config.lln for config, _ in by_config(model)], tensors)


def write_conversion(path: str | Path, base: Any, configs: list[dict[str, Any]], tensors: dict[str, Tensor]) -> Path:
    """Write the file: config.lln for each config of the model, and tensors by their names in it."""
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "base": weights_hash(base),
        "configs": json.dumps(configs, default=lambda shape: vars(shape)),
    }
    return write_tensors(path, tensors, metadata)


def use_conversion(model: Model, path: str | Path) -> str:
    """Give the softmax model what the file has, and return the name of its attention; the model is as it was if that fails."""
    metadata, tensors = _read(path)
    if metadata["base"] != weights_hash(model):
        raise ValueError(
            f"{path} was made for other weights than this model has: load the model it names, in float32, or convert this one "
            "with calibrate="
        )
    described = json.loads(metadata["configs"])
    configs = [config for config, _ in by_config(model)]
    if len(described) != len(configs):
        raise ValueError(f"{path} describes {len(described)} configs, but the model has {len(configs)}")
    attention = LLNOptions.from_dict(described[0]).attention
    if attention is None:
        raise ValueError(f"{path} does not say which attention it is for")
    changes = _changes(tensors)
    own = {name: x for name, x in tensors.items() if not name.startswith((CHANGE, LEFT, RIGHT, MAP))}
    maps = {name.removeprefix(MAP): x.double() for name, x in tensors.items() if name.startswith(MAP)}
    state = model.state_dict()
    wrong = [name for name in changes if name not in state or state[name].shape != changes[name].shape]
    if wrong:
        raise ValueError(f"{path} changes {wrong[0]!r}, which this model does not have in that size")
    for config, options in zip(configs, described, strict=True):
        config.lln = options
    attach_described(model)
    found = _ours(model)
    if found.keys() != own.keys() or any(found[name].shape != x.shape for name, x in own.items()):
        lacking = sorted(found.keys() ^ own.keys()) or ["numbers of another size"]
        detach(model)
        raise ValueError(f"{path} does not hold what it describes: {lacking[0]}")
    with torch.no_grad():
        for name, x in own.items():
            found[name].copy_(x)
        touched = {*changes, *(name for name in state if name.rpartition(".")[0].rpartition(".")[0] in maps)}
        model.__dict__["lln_originals"] = {name: state[name].clone() for name in touched}
        for name, change in changes.items():
            state[name].add_(change.to(state[name]))
    for name, matrix in maps.items():
        fold_into_projections(model.get_submodule(name), matrix)
    return attention


def restore_originals(model: Any) -> None:
    """Take the changes back, bit for bit."""
    state = model.state_dict()
    with torch.no_grad():
        for name, x in model.__dict__.pop("lln_originals", {}).items():
            state[name].copy_(x)


def weights_hash(model: Any) -> str:
    """SHA-256 over names, shapes and bytes of the model's own weights, in float32."""
    ours = _ours(model)
    own = ((name, x) for name, x in sorted(model.state_dict().items()) if name not in ours)
    return digest((f"{name} {tuple(x.shape)}", x.float()) for name, x in own)


def _ours(model: Any) -> dict[str, Tensor]:
    return {name: x for name, x in model.state_dict().items() if "lln" in name.split(".")}


def _changes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    whole_ones = {name.removeprefix(CHANGE): x.float() for name, x in tensors.items() if name.startswith(CHANGE)}
    names = [name.removeprefix(LEFT) for name in tensors if name.startswith(LEFT)]
    return whole_ones | {name: tensors[LEFT + name].float() @ tensors[RIGHT + name].float() for name in names}


def _read(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    metadata, tensors = read_tensors(path)
    if metadata.get("format") != FORMAT or metadata.get("version") != str(VERSION):
        raise ValueError(
            f"{path} is not what lln.hf.save_conversion of this release writes: a conversion of version {VERSION}"
        )
    return metadata, tensors
