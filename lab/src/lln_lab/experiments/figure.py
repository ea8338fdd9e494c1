"""The look that all figures share. Every figure is drawn from the JSON its run wrote, as PNG and as SVG."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
except ImportError as missing:
    raise ImportError("figures need matplotlib: pip install lln-lab") from missing

from lln.writing import whole
from lln_lab.colours import TINTS, styles

MARKERS = ("o", "s", "^", "D", "v", "P")
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.dpi": 120,
    "svg.hashsalt": "lln",  # the same numbers give the same file
}


def panels(columns: int, *, rows: int = 1, height: float = 3.6, width: float = 4.6) -> tuple[Figure, list[Axes]]:
    """A row of panels, or several, one after another. Three in a row are narrower, so that a page need not shrink the text."""
    width = min(width, 3.4) if columns > 2 else width
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            rows, columns, figsize=(width * columns, height * rows), layout="constrained", squeeze=False
        )
    return figure, list(axes.flatten())


def save(draw: Callable[[dict[str, Any]], Figure], data: dict[str, Any], path: Path) -> Path:
    """Draw `data` to `path`, a PNG, and to the SVG beside it."""
    with pyplot.rc_context(STYLE):
        figure = draw(data)
        try:
            figure.draw_without_rendering()  # settles the layout, which the first file would otherwise miss
            for kind, metadata in (("svg", {"Date": None}), ("png", {})):
                with whole(path.with_suffix(f".{kind}")) as aside:
                    figure.savefig(aside, format=kind, metadata=metadata)
        finally:
            pyplot.close(figure)
    return path


def looks(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and line style of every attention, for `Axes.plot`. A first variant is dashed, further ones dotted."""
    lines = dict(zip(TINTS, ("-", "--", ":"), strict=True))
    return {
        label: {"color": style.light, "marker": MARKERS[style.marker], "ls": lines[style.tint], "ms": 3.5}
        for label, style in styles(labels).items()
    }


def legend(figure: Figure, axes: Sequence[Axes], columns: int | None = None) -> None:
    """One legend for all panels, below them, where it covers nothing."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return
    room = 10.5 * figure.get_figwidth()  # characters, roughly
    width = max(map(len, entries)) + 7
    fits = max(1, min(len(entries), int(room / width)))
    rows = math.ceil(len(entries) / (columns or fits))
    even = math.ceil(len(entries) / rows)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=even)


def lengths_along(axis: Axes, lengths: Iterable[int]) -> None:
    """A logarithmic x axis whose ticks are the lengths that were measured, written out; every other one where they crowd."""
    ticks = sorted(set(lengths))
    shown = {tick for i, tick in enumerate(reversed(ticks)) if len(ticks) <= 6 or i % 2 == 0}
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:,}" if tick in shown else "" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("length")


def plain_log(axis: Axes, unit: Callable[[float], str] = "{:g}".format) -> None:
    """A logarithmic y axis with ticks written out: 1, 2, 5, 10; those between the powers only where the range is small."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    subs = (1.0, 2.0, 5.0) if high / low < 100 else (1.0,)
    axis.yaxis.set_major_locator(LogLocator(subs=subs))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: unit(value)))
    axis.yaxis.set_minor_formatter(NullFormatter())


def layer_colours(count: int) -> list[Any]:
    """From early (dark) to late (light) layers."""
    return [pyplot.get_cmap("viridis")(0.9 * i / max(1, count - 1)) for i in range(count)]
