"""Figure 9: alpha and beta of moment matching (eq. 10) in every layer of a ViT with LLN+Diag, while it trains."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from lln.instruments.probe import Probe
from lln_lab.experiments.tiny_data import Pictures, Stripes
from lln_lab.experiments.tiny_models import TinyViT
from lln_lab.experiments.verdict import Verdict, outcome_over

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "layers": 4, "width": 64, "heads": 2, "size": 32, "patch": 4, "batch": 16, "steps": 200, "points": 20, "rate": 1e-3,
    },
    "full": {
        "layers": 12, "width": 128, "heads": 8, "size": 128, "patch": 8, "batch": 64, "steps": 9400, "points": 100,
        "rate": 3e-4,
    },
}  # fmt: skip
RANGE = (2.0, 2.2)


def run(
    preset: str = "quick", seed: int = 0, steps: int | None = None, source: Path | None = None, target: str = "paper"
) -> dict[str, Any]:
    sizes = {**PRESETS[preset], **({} if steps is None else {"steps": steps})}
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    pictures = Stripes(sizes["size"]) if source is None else Pictures(source, sizes["size"])
    classes = 2 if isinstance(pictures, Stripes) else len(pictures.classes)
    model = TinyViT(
        sizes["layers"], sizes["width"], sizes["heads"], sizes["size"], sizes["patch"], classes,
        matching_options={"target": target}, block_size=16,
    )  # fmt: skip
    optimiser = torch.optim.AdamW(model.parameters(), lr=sizes["rate"])
    right: list[float] = []
    every = max(1, sizes["steps"] // sizes["points"])
    with Probe(model, every=every, samples=4, rows=32, measures=("matching", "temperature", "entropy", "gap")) as probe:
        for _ in range(sizes["steps"] + 1):
            images, labels = pictures.batch(sizes["batch"], generator)
            scores = model(images)
            loss = F.cross_entropy(scores, labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            right.append((scores.argmax(-1) == labels).float().mean().item())
    table = probe.table
    per_layer = []
    for layer in range(sizes["layers"]):
        heads = [{name: table.column(name, layer=layer, head=h) for name in ("alpha", "beta", "score_variance", "gap")}
                 for h in range(sizes["heads"])]  # fmt: skip
        per_layer.append(
            {name: [sum(v) / len(v) for v in zip(*(h[name] for h in heads), strict=True)] for name in heads[0]}
        )
    tail = right[-max(1, len(right) // 10) :]
    data = {
        "figure": 9, "preset": preset, **sizes, "target": target, "data": "stripes" if source is None else source.name,
        "step": table.column("step", layer=0, head=0), "per_layer": per_layer, "accuracy": sum(tail) / len(tail),
    }  # fmt: skip
    return {**data, "verdicts": [verdict.as_data() for verdict in verdicts(data)]}


def verdicts(data: dict[str, Any]) -> list[Verdict]:
    low, high = RANGE
    found = []
    for name in ("alpha", "beta"):
        spans = [(min(layer[name]), max(layer[name])) for layer in data["per_layer"]]
        inside = [low <= value <= high for layer in data["per_layer"] for value in layer[name]]
        listed = ", ".join(f"{a:.2f}–{b:.2f}" for a, b in spans)
        found.append(
            Verdict(
                f"{name} of moment matching lies within {low:g} to {high:g} during training (Figure 9).",
                outcome_over(inside),
                f"{sum(inside) / len(inside):.0%} of layers and moments inside; by layer {listed}; target "
                f"'{data['target']}', head size {data['width'] // data['heads']}, training accuracy at the end "
                f"{data['accuracy']:.1%} on {data['data']}",
            )
        )
    return found


def draw(data: dict[str, Any]) -> Any:
    from lln_lab.experiments.figure import layer_colours, legend, panels

    figure, axes = panels(2)
    for axis, name, title in zip(axes, ("alpha", "beta"), ("(a) α", "(b) β"), strict=True):
        for number, (layer, colour) in enumerate(zip(data["per_layer"], layer_colours(data["layers"]), strict=True)):
            axis.plot(data["step"], layer[name], color=colour, label=f"layer {number}")
        axis.axhspan(*RANGE, color="0.5", alpha=0.18, lw=0, label="the paper's range")
        axis.set(xlabel="training step", title=title)
    legend(figure, axes)
    figure.suptitle(
        f"Figure 9: moment matching while a ViT trains on {data['data']} (target: {data['target']})", fontsize=11
    )
    return figure
