"""The plot of `lln bench gpu`: time against the length, and the share of the card's bandwidth."""

from pathlib import Path
from typing import Any

from lln.writing import whole


def plot(result: dict[str, Any], path: Path) -> Path:
    """Two panels for forward and two for forward + backward."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError("plots need matplotlib: pip install 'lln-attention[cli]'") from missing
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(2, 2)
    for i, backward in enumerate((False, True)):
        rows = [row for row in result["rows"] if row["backward"] == backward and "milliseconds" in row]
        for name in dict.fromkeys(row["method"] for row in rows):
            own = [row for row in rows if row["method"] == name]
            lengths = [row["length"] for row in own]
            panels[i][0].plot(lengths, [row["milliseconds"] for row in own], marker="o", markersize=3, label=name)
            panels[i][1].plot(lengths, [row["share_of_copy"] for row in own], marker="o", markersize=3, label=name)
        title = "forward + backward" if backward else "forward"
        panels[i][0].set(xscale="log", yscale="log", xlabel="length", ylabel="ms", title=title)
        panels[i][1].set(xscale="log", xlabel="length", ylabel="share of a copy's bandwidth", title=title)
        for axes in panels[i]:
            axes.grid(alpha=0.3)
    panels[0][0].legend(fontsize=7)
    figure.suptitle(result["card"])
    with whole(path) as aside:
        figure.savefig(aside, format="png", dpi=130)
    return path
