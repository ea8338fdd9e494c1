"""The look that all figures share. Every figure is drawn from the JSON its run wrote."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image
except ImportError as missing:
    raise ImportError("figures need matplotlib: pip install lln-lab") from missing

from lln.writing import whole

# One colour for each thing, in every figure.
COLOURS = {
    "softmax": "#1b1b1b",
    "lln_paper": "#c0392b",
    "lln_entropy": "#2471a3",
    "lln_unmatched": "#e59866",
    "relu": "#7d8a2e",
    "quadratic": "#8e44ad",
    "elu": "#17a589",
}
LABELS = {
    "softmax": "softmax",
    "lln_paper": "LLN, the paper's matching",
    "lln_entropy": "LLN, entropy matching",
    "lln_unmatched": "LLN, α = β = 1",
    "relu": "ReLU",
    "quadratic": "quadratic",
    "elu": "ELU + 1",
}
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "figure.dpi": 130,
}


def panels(columns: int, *, height: float = 3.6, width: float = 4.6) -> tuple[Figure, list[Axes]]:
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            1, columns, figsize=(width * columns, height), layout="constrained", squeeze=False
        )
    return figure, list(axes[0])


def save(draw: Callable[[dict[str, Any]], Figure], data: dict[str, Any], path: Path) -> Path:
    """As a PNG with a palette, a third of the size: the report embeds the pictures. Dithering would make noise of it."""
    drawn = io.BytesIO()
    with pyplot.rc_context(STYLE):
        figure = draw(data)
        figure.savefig(drawn, format="png")
        pyplot.close(figure)
    with Image.open(drawn) as picture:
        small = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    with whole(path) as aside:
        small.save(aside, format="png", optimize=True)
    return path


def layer_colours(count: int) -> list[Any]:
    """From early (dark) to late (light) layers."""
    return [pyplot.get_cmap("viridis")(0.9 * i / max(1, count - 1)) for i in range(count)]
