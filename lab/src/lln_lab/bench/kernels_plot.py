"""The plot of `lln bench kernels`: ratios to the bare products against the length."""

from pathlib import Path
from typing import Any

from lln.writing import whole


def plot(result: dict[str, Any], path: Path) -> Path:
    """One panel for forward and one for forward + backward, for each number of threads."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError("plots need matplotlib: pip install 'lln-attention[cli]'") from missing
    threads = sorted({row["threads"] for row in result["timings"]})
    figure = Figure(figsize=(11, 4.2 * len(threads)), layout="constrained")
    panels = figure.subplots(len(threads), 2, squeeze=False)
    for i, number in enumerate(threads):
        for j, backward in enumerate((False, True)):
            rows = [row for row in result["timings"] if row["threads"] == number and row["backward"] == backward]
            axes = panels[i][j]
            for name in rows[0]["methods"]:
                points = [(row["length"], row["methods"][name]["ratio"]) for row in rows if name in row["methods"]]
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
            axes.set(xscale="log", yscale="log", xlabel="length", ylabel="time / bare products")
            axes.set_title(f"{'forward + backward' if backward else 'forward'}, {number} thread{'s' * (number > 1)}")
            axes.grid(alpha=0.3)
    panels[0][0].legend(fontsize=7)
    with whole(path) as aside:
        figure.savefig(aside, format="png", dpi=130)
    return path
