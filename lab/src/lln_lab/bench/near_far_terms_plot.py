"""The figure of `lln bench near-far-terms`: error against the spread of the scores, one panel a length."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def plot(result: dict[str, Any], path: Path) -> Path:
    rows = result["gaussian"]
    lengths = sorted({row["length"] for row in rows})
    figure, panels = plt.subplots(1, len(lengths), figsize=(4 * len(lengths), 3.4), sharey=True, layout="constrained")
    for panel, length in zip(panels, lengths, strict=True):
        own = [row for row in rows if row["length"] == length]
        for name in own[0]["error"]:
            panel.plot([row["x"] for row in own], [row["error"][name] for row in own], marker="o", ms=3, label=name)
        panel.set(title=f"{length:,} tokens", xscale="log", yscale="log", xlabel="x, variance of the scores")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("squared error over softmax's power")
    panels[-1].legend(fontsize=7)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
