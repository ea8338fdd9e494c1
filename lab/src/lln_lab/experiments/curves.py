"""Training curves of several attentions: the loss, its difference to softmax's seed by seed, and the gradients."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lln_lab.colours import OWN
from lln_lab.experiments.figure import legend, looks, panels, plain_log
from lln_lab.history import curve
from lln_lab.names import name_of

Results = Sequence[dict[str, Any]]


def draw(found: dict[str, Any]) -> Figure:
    runs = found["runs"]
    scaled = any("inverse_loss_scale" in x for r in runs for x in r["history"])
    several = len({r["label"] for r in runs}) > 1 and any(r["label"] == "softmax" for r in runs)
    figure, (loss, *middle, last) = panels(3 if several else 2, width=4.2)
    losses(loss, runs)
    for axis in middle:
        to_softmax(axis, runs)
    key = "inverse_loss_scale" if scaled else "grad_norm"
    each(last, runs, key)
    last.set(xlabel="step", title="inverse loss scale" if scaled else "norm of the gradient")
    if scaled:
        last.set_yscale("log", base=2)
        last.minorticks_off()
    else:
        plain_log(last)
    legend(figure, [*middle, loss])  # the middle one has markers
    return figure


def losses(axis: Axes, runs: Results) -> None:
    each(axis, runs, "loss")
    axis.set(xlabel="step", ylabel="nats per masked token", title="training loss")


def each(axis: Axes, runs: Results, key: str) -> None:
    """One line for every attention: the mean over its seeds."""
    look = looks(r["label"] for r in runs)
    for label in look:
        values: dict[int, list[float]] = {}
        for r in [r for r in runs if r["label"] == label]:
            for step, value in dict(curve(r["history"], key)).items():
                values.setdefault(step, []).append(value)
        if values:
            drawn = {**look[label], "marker": "", "lw": 1.2}
            axis.plot(list(values), [fmean(found) for found in values.values()], label=name_of(label), **drawn)


def to_softmax(axis: Axes, runs: Results) -> None:
    """loss − softmax's of the same seed at the same step, mean over seeds; the band is a standard deviation over seeds."""
    softmax = {r["seed"]: dict(curve(r["history"], "eval_loss")) for r in runs if r["label"] == "softmax"}
    look = looks(r["label"] for r in runs)
    seeds = 1
    for label in [label for label in look if label != "softmax"]:
        gaps: dict[int, list[float]] = {}
        for r in [r for r in runs if r["label"] == label and r["seed"] in softmax]:
            for step, value in dict(curve(r["history"], "eval_loss")).items():  # the last step is evaluated twice
                if step in softmax[r["seed"]]:
                    gaps.setdefault(step, []).append(value - softmax[r["seed"]][step])
        if not gaps:
            continue
        steps, means = list(gaps), [fmean(values) for values in gaps.values()]
        spreads = [stdev(values) if len(values) > 1 else 0.0 for values in gaps.values()]
        seeds = max(seeds, *map(len, gaps.values()))
        axis.plot(steps, means, label=name_of(label), **look[label])
        low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
        if label in OWN:  # bands of all would hide each other
            axis.fill_between(steps, low, high, color=look[label]["color"], alpha=0.15, lw=0)
    axis.axhline(0, color=look["softmax"]["color"], lw=1.2)
    told = f"mean of {seeds} seeds; bands of LLN and\nLLN+Diag: ± 1 standard deviation" if seeds > 1 else "one seed"
    axis.set(xlabel=f"step\n({told})", ylabel="validation loss − softmax's", title="below zero: better than softmax")
