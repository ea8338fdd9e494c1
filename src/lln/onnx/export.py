"""Capture a model with its attention seen through, and write it as ONNX.

Operations are captured in the forms of `lln.onnx.forms`, which are made of torch's own operators: what comes out needs neither
`lln` nor torch, takes any length that was declared dynamic, and stays linear in it.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lln.near_far import NearFarState
from lln.onnx.forms import FORMS
from lln.ops import graphs
from lln.ops.blocks.open_block import OpenBlock
from lln.state import LLNState

for _state in (OpenBlock, LLNState, NearFarState):  # what a model may take and give, tensor by tensor
    torch.export.register_dataclass(_state)


def portable(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, *, dynamic_shapes: Any = None
) -> torch.export.ExportedProgram:
    """`torch.export.export` of a model whose attention is made of torch's own operators, for any exporter that takes those.

    args, kwargs: what the model is called with, as an example. dynamic_shapes: as `torch.export.export` takes them.
    """
    with graphs.made_of(FORMS), torch.no_grad():
        return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)


def export(
    model: nn.Module,
    args: tuple[Any, ...],
    path: str | Path | None = None,
    *,
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    **options: Any,
) -> torch.onnx.ONNXProgram:
    """Write a model as ONNX to `path`; returns the program, whose `save` writes it as well.

    The model is captured as it is: call `eval()` before. options: further ones of `torch.onnx.export`, such as input_names,
    output_names or opset_version.
    """
    program = portable(model, args, kwargs, dynamic_shapes=dynamic_shapes)
    with warnings.catch_warnings():
        # torch's exporter uses names that torch has deprecated; -1e308 in float64 comes out as -inf in float32
        warnings.filterwarnings("ignore", "`isinstance\\(treespec", FutureWarning)
        warnings.filterwarnings("ignore", "overflow encountered in cast", RuntimeWarning)
        found = torch.onnx.export(program, dynamo=True, verbose=False, **options)
    assert found is not None
    if path is not None:
        found.save(str(path))
    return found
