"""An encoder before and after export: bytes on disk, and CPU time in torch and in ONNX Runtime, one thread each."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lln
import lln.onnx
from lln.measuring.timing import interleaved


@dataclass(frozen=True)
class Plan:
    width: int = 256
    heads: int = 4
    layers: int = 2
    lengths: tuple[int, ...] = (512, 2048, 8192)
    repeats: int = 5
    block_size: int = 64
    seed: int = 0


def run(plan: Plan, tell: Callable[[str], None]) -> dict[str, Any]:
    """One graph for each attention, exported with a dynamic length, timed at all of them beside torch."""
    torch.manual_seed(plan.seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [_measured(name, model, plan, tell) for name, model in _models(plan)]
    finally:
        torch.set_num_threads(threads)
    return {
        "plan": plan.__dict__,
        "clock": "least CPU time of interleaved rounds, one thread",
        "versions": _versions(),
        "rows": rows,
    }


def _models(plan: Plan) -> list[tuple[str, nn.Module]]:
    def stack(layer: Any) -> nn.Module:
        return nn.TransformerEncoder(layer, plan.layers, enable_nested_tensor=False).eval()

    def own(attention: str, **options: Any) -> nn.Module:
        by_table = {"matching_options": {"method": "table"}, **options}
        return stack(
            lln.LLNEncoderLayer(plan.width, plan.heads, 4 * plan.width, attention=attention, attention_options=by_table)
        )

    def softmax() -> nn.Module:
        return stack(nn.TransformerEncoderLayer(plan.width, plan.heads, 4 * plan.width, batch_first=True))

    converted = softmax()
    lln.convert(converted, [torch.randn(1, 8 * plan.block_size, plan.width)], block_size=plan.block_size)
    return [
        ("softmax", softmax()),
        ("LLN", own("lln")),
        ("LLN+Diag", own("lln_diag", block_size=plan.block_size)),
        ("converted, near-far", converted),
    ]


def _measured(name: str, model: nn.Module, plan: Plan, tell: Callable[[str], None]) -> dict[str, Any]:
    tell(f"{name}: export")
    example, dynamic = torch.randn(1, 3 * plan.block_size, plan.width), ({1: torch.export.Dim.DYNAMIC},)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        program = lln.onnx.export(model, (example,), path, dynamic_shapes=dynamic)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        session = _session(path)
        at = [_at_length(name, model, session, length, plan, tell) for length in plan.lengths]
    weights = sum(x.numel() * x.element_size() for x in model.state_dict().values())
    return {
        "attention": name,
        "weights_bytes": weights,
        "onnx_bytes": size,
        "onnx_nodes": len(program.model.graph),
        "at": at,
    }


@torch.no_grad()
def _at_length(
    name: str, model: nn.Module, session: Any, length: int, plan: Plan, tell: Callable[[str], None]
) -> dict[str, Any]:
    tell(f"{name}: {length:,} tokens")
    x = torch.randn(1, length, plan.width, generator=torch.Generator().manual_seed(plan.seed))
    given = {session.get_inputs()[0].name: x.numpy()}
    out = model(x)
    difference = float((out - torch.from_numpy(session.run(None, given)[0])).abs().max())
    timing = interleaved(
        {"torch": lambda: model(x), "onnxruntime": lambda: session.run(None, given)}, repeats=plan.repeats
    )
    seconds = {engine: found.least_cpu for engine, found in timing.items()}
    return {
        "length": length,
        "cpu_seconds": seconds,
        "onnxruntime_over_torch": seconds["onnxruntime"] / seconds["torch"],
        "largest_difference": difference,
        "largest_output": _largest(out),
    }


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _largest(x: Tensor) -> float:
    return float(x.abs().max())


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "onnx", "onnxscript", "onnxruntime")}
