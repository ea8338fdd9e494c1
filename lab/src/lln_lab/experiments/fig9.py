"""Figure 9: alpha and beta of moment matching (eq. 10) in every layer of the ViT of Table 3, while it trains on dogs vs cats.

The model is the one of Table 3 with LLN+Diag and the paper's own matching; a probe looks at it while it trains.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lln_lab.experiments import table3
from lln_lab.experiments.check import Planned
from lln_lab.experiments.evidence import missing
from lln_lab.experiments.figure import layer_colours, panels
from lln_lab.experiments.grid import Watcher
from lln_lab.experiments.verdict import Verdict, judged, outcome_over

LOOKS = 50
RANGE = (2.0, 2.2)
NAMES = {"alpha": "α", "beta": "β"}
PRESETS = {
    name: replace(preset, contestants=("lln_diag:target=paper",), source=preset.source)
    for name, preset in table3.PRESETS.items()
}


def run(
    settings: table3.Settings, folder: Path, *, source: str | None = None, watcher: Watcher | None = None
) -> dict[str, Any]:
    every = max(1, settings.budget.steps // LOOKS)
    watched = replace(settings, budget=replace(settings.budget, watch_every=every))
    found = table3.run(watched, folder, source=source, watcher=watcher)
    if wrong := sorted({r["label"] for r in found["runs"] if not any(x for x in series(r))}):
        raise ValueError(f"only LLN and LLN+Diag have an alpha and a beta to look at, not {', '.join(wrong)}")
    found |= {"experiment": "fig9", "title": "alpha and beta while a ViT trains (Figure 9)"}
    found["tables"] = [found["tables"][0], table(found["runs"])]
    return {**found, "verdicts": [verdict.as_data() for verdict in verdicts(found["runs"])]}


def planned(settings: table3.Settings) -> list[Planned]:
    return table3.planned(settings)


def series(result: dict[str, Any]) -> Iterator[dict[str, list[tuple[int, float]]]]:
    """For each layer {"alpha": [(step, value), …], "beta": …}, means over heads."""
    for layer in range(result["model"]["layers"]):
        keys = {name: f"attention/{layer}/{name}" for name in NAMES}
        found = {name: [(x["step"], x[key]) for x in result["history"] if key in x] for name, key in keys.items()}
        if all(found.values()):
            yield found


def table(results: list[dict[str, Any]]) -> dict[str, Any]:
    rows: list[list[Any]] = []
    for r in results:
        for number, layer in enumerate(series(r)):
            spans = [f"{min(v for _, v in layer[name]):.2f} to {max(v for _, v in layer[name]):.2f}" for name in NAMES]
            rows.append([r["label"], r["seed"], number, *spans])
    columns = ["attention", "seed", "layer", *NAMES.values()]
    return {"title": "Smallest and largest value during training", "note": "", "columns": columns, "rows": rows}


def verdicts(results: list[dict[str, Any]]) -> list[Verdict]:
    low, high = RANGE
    found = []
    for label in dict.fromkeys(r["label"] for r in results):
        layers = [layer for r in results if r["label"] == label for layer in series(r)]
        lacks = missing(results, "dogs_vs_cats", [label], learner=label)
        for name in NAMES:
            inside = [low <= value <= high for layer in layers for _, value in layer[name]]
            values = [value for layer in layers for _, value in layer[name]]
            claim = f"{name} of moment matching lies within {low:g} to {high:g} during training (Figure 9)"
            numbers = (
                f"{sum(inside) / len(inside):.0%} of layers and moments inside, {min(values):.2f} to {max(values):.2f}"
            )
            found.append(judged(claim, outcome_over(inside), f"{label}: {numbers}", lacks))
    return found


def draw(found: dict[str, Any]) -> Figure:
    """The first run's layers; the paper's range is shaded."""
    figure, axes = panels(2)
    layers = list(series(found["runs"][0]))
    for axis, (name, symbol) in zip(axes, NAMES.items(), strict=True):
        for number, (layer, colour) in enumerate(zip(layers, layer_colours(len(layers)), strict=True)):
            axis.plot(*zip(*layer[name], strict=True), color=colour, label=f"layer {number}")
        axis.axhspan(*RANGE, color="0.5", alpha=0.15, lw=0)
        axis.set(xlabel="step", title=f"{symbol} (the paper's range is shaded)")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    return figure
