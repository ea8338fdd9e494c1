"""Figure 1: temperature, entropy and spectral gap of every layer of a small RoBERTa with one head a layer, while it trains."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from lln.instruments.probe import Probe
from lln_lab.experiments.tiny_data import masked_bytes, text_bytes
from lln_lab.experiments.tiny_models import ByteEncoder
from lln_lab.experiments.verdict import FAILS, HOLDS, WITHIN, Verdict, outcome_over

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"layers": 4, "width": 64, "length": 64, "batch": 16, "steps": 600, "points": 20, "rate": 1e-3},
    "full": {"layers": 6, "width": 256, "length": 512, "batch": 32, "steps": 10_000, "points": 100, "rate": 5e-4},
}
COLUMNS = ("temperature", "temperature_full", "entropy", "gap", "biased_bits", "unbiased_bits")
MOVED = 0.02  # a gap has risen when it changed by more than this
MORE_BIASED = 0.1  # bits
STEADY = 0.25  # a temperature remained constant when it changed by less than this share


def run(preset: str = "quick", seed: int = 0, steps: int | None = None, source: Path | None = None) -> dict[str, Any]:
    sizes = {**PRESETS[preset], **({} if steps is None else {"steps": steps})}
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    text = text_bytes(source)
    model = ByteEncoder(sizes["layers"], sizes["width"], sizes["length"])
    optimiser = torch.optim.AdamW(model.parameters(), lr=sizes["rate"])
    warm_up = max(1, sizes["steps"] // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / warm_up))
    losses = []
    every = max(1, sizes["steps"] // sizes["points"])
    with Probe(model, every=every, samples=2, rows=64, measures=("temperature", "entropy", "gap", "bias")) as probe:
        for _ in range(sizes["steps"] + 1):  # one more, so that the end is looked at
            tokens, labels = masked_bytes(text, sizes["batch"], sizes["length"], generator)
            loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
    table = probe.table
    layers = [{name: table.column(name, layer=i) for name in COLUMNS} for i in range(sizes["layers"])]
    data = {
        "figure": 1, "preset": preset, **sizes, "data": "Python's standard library" if source is None else source.name,
        "step": table.column("step", layer=0), "per_layer": layers, "loss": losses[::every],
    }  # fmt: skip
    return {**data, "verdicts": [verdict.as_data() for verdict in verdicts(data)]}


def verdicts(data: dict[str, Any]) -> list[Verdict]:
    layers = data["per_layer"]

    def change(name: str) -> list[tuple[float, float]]:
        return [(layer[name][0], layer[name][-1]) for layer in layers]

    def listed(name: str, form: str = ".3g") -> str:
        return ", ".join(f"{first:{form}} → {last:{form}}" for first, last in change(name)) + " (first to last layer)"

    cooler = [last < first for first, last in change("temperature")]
    calmer = [last < first for first, last in change("entropy")]
    lowest = [min(layer["entropy"]) for layer in layers]
    narrower = [last < first for first, last in change("gap")]
    middle = lowest[1:-1] or lowest
    zero = min(middle) < 0.1
    rises = [rise for number, layer in enumerate(layers) if (rise := _rise_of_the_gap(number, layer, data["step"]))]
    steady = [rise for rise in rises if rise["steady"]]
    biased = [rise for rise in steady if rise["more_biased"]]
    loss = f"loss {data['loss'][0]:.2f} → {data['loss'][-1]:.2f} in {data['steps']} steps"
    return [
        Verdict("Temperature decreases during training (Figure 1a).", outcome_over(cooler), f"{listed('temperature')}; {loss}"),
        Verdict(
            "That leads to lower entropy (Figure 1b).", outcome_over(calmer), f"bits: {listed('entropy', '.2f')}; lowest "
            + ", ".join(f"{value:.2f}" for value in lowest),
        ),
        Verdict(
            "The entropy of the middle layers becomes approximately zero (Figure 1b).",
            HOLDS if zero else WITHIN if min(middle) < 1 else FAILS,
            f"lowest entropy of a middle layer {min(middle):.2f} bits, {data['steps']} steps, {data['layers']} layers",
        ),
        Verdict(
            "In most layers the spectral gap decreases during training (Figure 1c).",
            HOLDS if sum(narrower) > len(layers) / 2 else WITHIN if any(narrower) else FAILS,
            f"in {sum(narrower)} of {len(layers)} layers: {listed('gap', '.3f')}",
        ),
        Verdict(
            "In some layers the gap increases while the temperature remains constant: the matrix is biased (Figure 1c).",
            FAILS if not biased else HOLDS if len(biased) == len(steady) else WITHIN,
            "; ".join(rise["words"] for rise in rises)
            + f". At a steady temperature (within {STEADY:.0%}): {len(steady)}; of these more biased (by {MORE_BIASED} bits): "
            f"{len(biased)}"
            if rises else f"no layer's gap rose by more than {MOVED} after its lowest point in this run",
        ),
    ]  # fmt: skip


def _rise_of_the_gap(number: int, layer: dict[str, list[float]], steps: list[int]) -> dict[str, Any] | None:
    """How the gap came back after its lowest point, and whether temperature stayed and bias grew meanwhile."""
    gap, tau, bits = layer["gap"], layer["temperature"], layer["biased_bits"]
    low = min(range(len(gap)), key=gap.__getitem__)
    if gap[-1] - gap[low] <= MOVED:
        return None
    return {
        "steady": abs(tau[-1] / tau[low] - 1) < STEADY,
        "more_biased": bits[-1] > bits[low] + MORE_BIASED,
        "words": f"layer {number}: gap {gap[low]:.3f} → {gap[-1]:.3f} after step {steps[low]}, temperature {tau[low]:.3g} → "
        f"{tau[-1]:.3g}, biased bits {bits[low]:.2f} → {bits[-1]:.2f}",
    }


def draw(data: dict[str, Any]) -> Any:
    from lln_lab.experiments.figure import layer_colours, legend, panels

    figure, axes = panels(3, width=4.0)
    for axis, name, title in zip(
        axes,
        ("temperature", "entropy", "gap"),
        ("(a) temperature", "(b) entropy [bits]", "(c) spectral gap"),
        strict=True,
    ):
        for number, (layer, colour) in enumerate(zip(data["per_layer"], layer_colours(data["layers"]), strict=True)):
            axis.plot(data["step"], layer[name], color=colour, label=f"layer {number}")
        axis.set(xlabel="training step", title=title)
    axes[0].set_yscale("log")
    axes[0].set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes[0].minorticks_off()
    legend(figure, axes[:1])
    figure.suptitle(
        f"Figure 1: training a small RoBERTa-like encoder on {data['data']}, one head per layer", fontsize=11
    )
    return figure
