"""A model in ONNX Runtime beside itself in torch, by the oracle rule."""

from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn

import lln.onnx

DYNAMIC = torch.export.Dim.DYNAMIC
FACTOR, UNITS_IN_LAST_PLACE = 2.0, 4.0  # as in tests/ops/tolerance.py


class Calls(nn.Module):
    """A function as a model."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


class Runtime:
    """What was exported, called as torch calls it."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, *args: Tensor) -> list[Tensor]:
        names = [x.name for x in self.session.get_inputs()]
        given = {name: x.numpy() for name, x in zip(names, args, strict=True)}
        return [torch.from_numpy(x) for x in self.session.run(None, given)]


def exported(model: nn.Module, args: tuple[Tensor, ...], path: Path, dynamic: Any) -> Runtime:
    lln.onnx.export(model, args, path, dynamic_shapes=dynamic)
    return Runtime(path)


def assert_as_good(actual: Tensor, plain: Tensor, true: Tensor) -> None:
    """Error against float64 at most twice that of torch in float32, and a few units in the last place."""
    allowed = FACTOR * float((plain.double() - true).abs().max())
    allowed += UNITS_IN_LAST_PLACE * torch.finfo(plain.dtype).eps * float(true.abs().max())
    error = float((actual.double() - true).abs().max())
    assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}"
