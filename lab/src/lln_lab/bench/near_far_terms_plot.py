"""The figure of `lln bench near-far-terms`: error against the spread of the scores, one panel per length."""

from typing import Any

from matplotlib.figure import Figure

from lln_lab.experiments.figure import legend, looks, panels


def draw(result: dict[str, Any]) -> Figure:
    rows = result["gaussian"]
    lengths = sorted({row["length"] for row in rows})
    look = looks(rows[0]["error"])
    figure, axes = panels(len(lengths), width=4.0)
    for axis, length in zip(axes, lengths, strict=True):
        own = [row for row in rows if row["length"] == length]
        for name in own[0]["error"]:
            axis.plot([row["x"] for row in own], [row["error"][name] for row in own], label=name, **look[name])
        axis.set(title=f"{length:,} tokens", xscale="log", yscale="log", xlabel="x, variance of the scores")
    low, high = (limit(axis.get_ylim()[i] for axis in axes) for i, limit in enumerate((min, max)))
    for axis in axes:
        axis.set_ylim(low, high)
    axes[0].set_ylabel("squared error over softmax's power")
    legend(figure, axes[:1])
    return figure
