"""Checkpoints of a distillation: one safetensors file with parameters, optimiser state and progress, whole or not at all."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

FILE = "distil.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # what Adam keeps of each parameter


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Tells data and weights apart: a checkpoint goes on with what it began with, or not at all."""
    found = hashlib.sha256()
    for x in tensors:
        found.update(f"{x.dtype}{tuple(x.shape)}".encode())
        found.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:12]


def save_checkpoint(
    folder: Path, parameters: dict[str, Tensor], optimizer: torch.optim.Optimizer, progress: dict[str, Any]
) -> Path:
    """Written aside and renamed, so that an interruption leaves the checkpoint before it."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"parameter/{name}": x.detach().contiguous() for name, x in parameters.items()}
    for name, x in parameters.items():
        for moment, value in optimizer.state.get(x, {}).items():
            tensors[f"{moment}/{name}"] = torch.as_tensor(value).contiguous()
    path = folder / FILE
    aside = path.with_name(path.name + ".part")
    save_file(tensors, aside, metadata={"progress": json.dumps(progress)})
    aside.replace(path)
    return path


def load_checkpoint(
    folder: Path, parameters: dict[str, Tensor], optimizer: torch.optim.Optimizer, settings: dict[str, Any]
) -> dict[str, Any] | None:
    """Put parameters and optimiser back as they were and return the progress; None where there is no checkpoint."""
    path = folder / FILE
    if not path.exists():
        return None
    with safe_open(path, framework="pt") as file:
        progress: dict[str, Any] = json.loads(file.metadata()["progress"])
        _refuse_other_settings(path, progress["settings"], settings)
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
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
