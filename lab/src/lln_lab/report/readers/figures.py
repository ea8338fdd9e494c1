"""Figures of the paper that need no table: curves that can be drawn again, beside the picture of the command."""

from typing import Any

from lln_lab.report.blocks import Block
from lln_lab.report.plots import Axis, Line, Plot, choices
from lln_lab.report.readers.experiment import measure, per_layer
from lln_lab.report.readers.reader import FIGURES, Reader

TITLES = {
    1: "temperature, entropy and spectral gap while a small RoBERTa trains",
    2: "entropy and spectral gap against temperature",
    5: "mean and variance of softmax attention, and LLN's variance",
    6: "variance of sums of log-normal variables",
    7: "histograms of softmax and LLN attention",
    9: "alpha and beta of moment matching while a ViT trains",
}


def knows(data: dict[str, Any]) -> bool:
    return "figure" in data


def title(data: dict[str, Any]) -> str | None:
    known = TITLES.get(data["figure"]) if isinstance(data["figure"], int) else None
    return f"Figure {data['figure']}" + (f": {known}" if known else "")


def layers_over_time(data: dict[str, Any]) -> list[Block]:
    if "per_layer" not in data:
        return []
    lines = [
        Line(
            {"measure": measure(key), "run": "model", "attention": "model", "layer": f"layer {number}"}, data["step"], y
        )
        for number, layer in enumerate(data["per_layer"])
        for key, y in layer.items()
    ]
    return [per_layer("Every layer over time", lines)]


def loss(data: dict[str, Any]) -> list[Block]:
    if not isinstance(data.get("loss"), list):
        return []
    line = Line({"run": "training"}, data["step"], data["loss"])
    return [Plot("Loss", Axis("step"), Axis("loss"), "run", [line])]


def kernels_against_temperature(data: dict[str, Any]) -> list[Block]:
    if "curves" not in data:
        return []
    lines = [
        Line({"measure": measure(key), "kernel": kernel}, data["temperature"], curve[key])
        for kernel, curve in data["curves"].items()
        for key in ("entropy", "gap")
    ]
    axes = {name: Axis(name) for name in (measure("entropy"), measure("gap"))}
    selector = choices("Measure", "measure", lines, axes)
    return [Plot("Kernels", Axis("temperature", log=True), Axis(""), "kernel", lines, [selector])]


READER = Reader(FIGURES, knows, title, (layers_over_time, loss, kernels_against_temperature))
