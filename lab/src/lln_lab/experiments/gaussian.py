"""Are queries and keys Gaussian while a model trains, and what does the deviation cost?

The paper's matching assumes centred Gaussian queries and keys. A small RoBERTa with softmax trains, and at several steps the
queries and keys of every layer are looked at: mean share, skewness, excess kurtosis, KS distance (`lln.instruments`), and the
cost: how far LLN's row entropy is from softmax's for these very inputs, with alpha and beta from the Gaussian table,
matched on a sample of them (the default), and solved for on all of them (`method="instance"`), in bits; and the share of heads
within 5 %.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from lln.instruments.gaussianity import describe
from lln_lab.experiments import fig8
from lln_lab.experiments.check import Planned
from lln_lab.experiments.figure import layer_colours, legend, panels
from lln_lab.experiments.grid import Watcher
from lln_lab.experiments.queries import entropy_bits, matched_lln_matrix, queries_and_keys, softmax_matrix
from lln_lab.experiments.training import Budget
from lln_lab.experiments.verdict import Verdict, outcome_over

METHODS = ("table", "sample", "instance")
SHAPE = ("mean_share", "skewness", "kurtosis", "ks", "anisotropy")


@dataclass(frozen=True)
class Settings:
    pretraining: fig8.Settings
    looks: int = 5  # besides the first
    contestants: tuple[str, ...] = ("softmax",)
    seeds: int = 1

    @property
    def budget(self) -> Budget:
        return self.pretraining.budget


PRESETS = {name: Settings(preset) for name, preset in fig8.PRESETS.items()}


def run(
    settings: Settings, folder: Path, *, source: str | None = None, watcher: Watcher | None = None
) -> dict[str, Any]:
    every = max(1, settings.budget.steps // settings.looks)
    found = fig8.run(
        fig8.with_contestants(settings.pretraining, settings.contestants, settings.seeds), folder,
        source=source, watcher=watcher, look=(every, look),
    )  # fmt: skip
    seen = [(r, x) for r in found["runs"] for x in r["history"] if "look" in x]
    rows: list[list[Any]] = []
    for r, x in seen:
        for layer, each in enumerate(x["look"]):
            rows.append([r["label"], r["seed"], x["step"], layer, *(_rounded(each[name]) for name in COLUMNS)])
    table = {
        "title": "Queries and keys while a model trains",
        "note": "Means over heads. Cost: |entropy of LLN - entropy of softmax| in bits, for the same queries and keys.",
        "columns": ["attention", "seed", "step", "layer", *COLUMNS],
        "rows": rows,
    }
    result = {**found, "experiment": "gaussian", "title": "Are queries and keys Gaussian?", "tables": [table]}
    result["settings"] = asdict(settings)
    return {**result, "verdicts": [verdict.as_data() for verdict in verdicts([x["look"] for _, x in seen])]}


def planned(settings: Settings) -> list[Planned]:
    return fig8.planned(fig8.with_contestants(settings.pretraining, settings.contestants, 1))


@torch.no_grad()
def look(model: nn.Module, batch: dict[str, Any]) -> list[dict[str, float]]:
    """A dictionary of COLUMNS for every layer."""
    rows = []
    inputs = {"input_ids": batch["input_ids"][:2]}
    for q, k in queries_and_keys(model, inputs):
        row: dict[str, float] = {}
        for name, x in (("q", q), ("k", k)):
            heads = [describe(x[:, head].flatten(0, 1)) for head in range(x.shape[1])]
            row |= {f"{name} {what}": sum(h[what] for h in heads) / len(heads) for what in SHAPE}
        target = entropy_bits(softmax_matrix(q, k))
        row["softmax entropy"] = float(target.mean())
        for method in METHODS:
            off = (entropy_bits(matched_lln_matrix(q, k, method)) - target).abs()
            row[f"cost, {method}"] = float(off.mean())
            row[f"within 5 %, {method}"] = float((off <= 0.05 * target).float().mean())
        rows.append(row)
    return rows


COLUMNS = [
    *(f"{x} {what}" for x in ("q", "k") for what in SHAPE), "softmax entropy",
    *(f"{what}, {method}" for what in ("cost", "within 5 %") for method in METHODS),
]  # fmt: skip


def verdicts(looks: list[list[dict[str, float]]]) -> list[Verdict]:
    layers = [layer for seen in looks for layer in seen]
    gaussian = [max(layer["q ks"], layer["k ks"]) < 0.05 for layer in layers]
    centred = [max(layer["q mean_share"], layer["k mean_share"]) < 0.05 for layer in layers]
    cheap = [layer["cost, table"] < 0.03 * layer["softmax entropy"] for layer in layers]
    largest = max(layer["cost, table"] / layer["softmax entropy"] for layer in layers)
    found = [
        Verdict(
            "queries and keys are Gaussian during training (Section 3)", outcome_over(gaussian),
            f"KS distance below .05 in {sum(gaussian)} of {len(gaussian)} looks at a layer; "
            f"largest {max(max(x['q ks'], x['k ks']) for x in layers):.3f}",
        ),
        Verdict(
            "queries and keys are centred during training (Section 3)", outcome_over(centred),
            f"less than 5 % of the power in the mean in {sum(centred)} of {len(centred)} looks at a layer",
        ),
        Verdict(
            "matching by the Gaussian table keeps softmax's entropy within 3 % all the same", outcome_over(cheap),
            f"in {sum(cheap)} of {len(cheap)} looks at a layer; largest deviation {100 * largest:.1f} %",
        ),
    ]  # fmt: skip
    if all("cost, sample" in layer for layer in layers):  # results from before there was matching on a sample lack it
        sampled = [layer["cost, sample"] < 0.03 * layer["softmax entropy"] for layer in layers]
        largest = max(layer["cost, sample"] / layer["softmax entropy"] for layer in layers)
        numbers = f"in {sum(sampled)} of {len(sampled)} looks at a layer; largest deviation {100 * largest:.1f} %"
        claim = "matching on a sample keeps softmax's entropy within 3 %"
        found.append(Verdict(claim, outcome_over(sampled), numbers))
    return found


def draw(found: dict[str, Any]) -> Figure:
    figure, (shape, cost) = panels(2)
    first = found["runs"][0]
    seen = [(x["step"], x["look"]) for x in first["history"] if "look" in x]
    colours = layer_colours(len(seen[0][1]))
    beside = next(
        method for method in ("sample", "instance") if f"cost, {method}" in seen[0][1][0]
    )  # older results: instance
    for layer, colour in enumerate(colours):
        steps = [step for step, _ in seen]
        shape.plot(steps, [rows[layer]["k ks"] for _, rows in seen], color=colour, label=f"layer {layer}")
        cost.plot(steps, [rows[layer]["cost, table"] for _, rows in seen], color=colour)
        cost.plot(steps, [rows[layer][f"cost, {beside}"] for _, rows in seen], "--", color=colour)
    shape.set(xlabel="step", ylabel="KS distance of keys to a Gaussian", title="deviation")
    cost.set(xlabel="step", ylabel="bits", title="LLN's entropy − softmax's, absolute")
    cost.plot([], [], "-", color="0.3", label="matched by the table")
    cost.plot([], [], "--", color="0.3", label=f"matched on the {beside}")
    legend(figure, [shape, cost])
    return figure


def _rounded(x: float) -> float:
    return round(x, 4)
