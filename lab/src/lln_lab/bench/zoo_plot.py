"""Time and memory against the length, drawn from the benchmark's JSON."""

from pathlib import Path
from typing import Any

from lln.writing import whole

PANELS = (("step_seconds", "seconds per training step", 1.0), ("peak_bytes", "peak memory [GB]", 1e9))
EMPHASIS = {"softmax": ("black", 2.5), "lln": ("tab:red", 2.5), "lln_diag": ("tab:orange", 2.5)}


def plot(result: dict[str, Any], path: Path) -> Path:
    """One row of panels per shape; softmax and LLN stand out."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as missing:
        raise ImportError("plots need matplotlib: pip install 'lln-attention[cli]'") from missing
    shapes = list(result["plan"]["lengths"])
    figure, axes = plt.subplots(len(shapes), 2, figsize=(13, 5 * len(shapes)), squeeze=False)
    for row, shape in enumerate(shapes):
        for column, (measure, label, unit) in enumerate(PANELS):
            axis = axes[row][column]
            for member in dict.fromkeys(r["member"] for r in result["rows"]):
                points = [
                    (r["length"], r[measure] / unit)
                    for r in result["rows"]
                    if r["member"] == member and r["shape"] == shape and r["status"] == "ok"
                ]
                if points:
                    colour, width = EMPHASIS.get(member, (None, 1.0))
                    axis.loglog(*zip(*sorted(points), strict=True), marker=".", label=member, color=colour, lw=width)
            axis.set(title=f"{shape}: {label}", xlabel="length")
    axes[0][1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    with whole(path) as aside:
        figure.savefig(aside, format="png", dpi=120)
    plt.close(figure)
    return path
