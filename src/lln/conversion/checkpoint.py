"""Checkpoints of a distillation: one safetensors file with parameters, optimiser state and progress, whole or not at all."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.tensor_files import digest, read_tensors, write_tensors

FILE = "distil.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # what Adam keeps of each parameter


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Tells data and weights apart: a checkpoint goes on with what it began with, or not at all."""
    return digest((f"{x.dtype}{tuple(x.shape)}", x) for x in tensors)[:12]


def save_checkpoint(
    folder: Path, parameters: dict[str, Tensor], optimizer: torch.optim.Optimizer, progress: dict[str, Any]
) -> Path:
    """An interruption leaves the checkpoint before it."""
    tensors = {f"parameter/{name}": x for name, x in parameters.items()}
    for name, x in parameters.items():
        for moment, value in optimizer.state.get(x, {}).items():
            tensors[f"{moment}/{name}"] = torch.as_tensor(value)
    return write_tensors(folder / FILE, tensors, {"progress": json.dumps(progress)})


def load_checkpoint(
    folder: Path, parameters: dict[str, Tensor], optimizer: torch.optim.Optimizer, settings: dict[str, Any]
) -> dict[str, Any] | None:
    """Put parameters and optimiser back as they were and return the progress; None where there is no checkpoint."""
    path = folder / FILE
    if not path.exists():
        return None
    metadata, stored = read_tensors(path)
    progress: dict[str, Any] = json.loads(metadata["progress"])
    _refuse_other_settings(path, progress["settings"], settings)
    names = {name.removeprefix("parameter/") for name in stored if name.startswith("parameter/")}
    if names != set(parameters):
        odd = ", ".join(sorted(names ^ set(parameters))[:4])
        raise ValueError(f"{path} is of another model: parameters differ ({odd}). Give another folder, or resume=False")
    with torch.no_grad():
        for name, x in parameters.items():
            x.copy_(stored[f"parameter/{name}"])
            moments = {m: stored[f"{m}/{name}"] for m in MOMENTS if f"{m}/{name}" in stored}
            if moments:
                optimizer.state[x] = {m: value.to(x.device) if m != "step" else value for m, value in moments.items()}
    return progress


def _refuse_other_settings(path: Path, stored: dict[str, Any], given: dict[str, Any]) -> None:
    differing = [name for name in given if stored.get(name) != given[name]]
    if differing:
        told = ", ".join(f"{n}={stored.get(n)!r} there, {given[n]!r} here" for n in differing)
        raise ValueError(
            f"{path} was written with other settings ({told}). Give those, another folder, or resume=False"
        )
