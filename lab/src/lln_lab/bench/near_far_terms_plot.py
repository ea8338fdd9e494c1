"""The figure of `lln bench near-far-terms`: error against the spread of the scores, a row of panels for each kind of input."""

from typing import Any

from matplotlib.figure import Figure

from lln_lab.experiments.figure import legend, looks, panels

ROWS = {"gaussian": ("x", "Gaussian", "x, variance of the scores"), "real": ("factor", "model", "factor on the scores")}


def draw(result: dict[str, Any]) -> Figure:
    kinds = [kind for kind in ROWS if kind in result]
    lengths = {kind: sorted({row["length"] for row in result[kind]}) for kind in kinds}
    look = looks(result["gaussian"][0]["error"])
    columns = max(map(len, lengths.values()))
    figure, axes = panels(columns, rows=len(kinds), width=4.0)
    for at, kind in enumerate(kinds):
        against, title, label = ROWS[kind]
        own = axes[at * columns : (at + 1) * columns]
        for axis, length in zip(own, lengths[kind], strict=False):
            rows = [row for row in result[kind] if row["length"] == length]
            for name in rows[0]["error"]:
                axis.plot(
                    [row[against] for row in rows], [row["error"][name] for row in rows], label=name, **look[name]
                )
            axis.set(title=f"{title}, {length:,} tokens", xscale="log", yscale="log", xlabel=label)
            if kind == "real":  # a narrow range, whose labels in powers of ten would overlap
                axis.set_xticks([row[against] for row in rows], [f"{row[against]:g}" for row in rows])
                axis.minorticks_off()
        for axis in own[len(lengths[kind]) :]:
            axis.set_visible(False)
        drawn = own[: len(lengths[kind])]
        low, high = (limit(axis.get_ylim()[i] for axis in drawn) for i, limit in enumerate((min, max)))
        for axis in drawn:
            axis.set_ylim(low, high)
        own[0].set_ylabel("squared error over softmax's power")
    legend(figure, axes[:1])
    return figure
