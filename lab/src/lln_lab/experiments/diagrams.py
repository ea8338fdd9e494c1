"""Figures 3 and 4, the paper's diagrams, drawn by code: the layer of the LLN transformer, and the order of products."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from lln_lab.experiments.figure import looks, panels

GREY, INK = "#eceff1", "#37474f"
Point = tuple[float, float]


def layer(_: dict[str, Any]) -> Figure:
    """Figure 3: attention over the whole sequence and inside blocks, averaged; then the rest of a transformer layer."""
    figure, (axis,) = panels(1, width=6.4, height=6.6)
    _bare(axis, 10, 10.8)
    colour = {name: style["color"] for name, style in looks(["softmax", "lln", "lln_diag"]).items()}
    _box(axis, (5, 0.6), 4.6, 0.8, "tokens of the layer before", GREY)
    _box(axis, (5, 2.0), 4.6, 0.8, "queries, keys, values (linear)", GREY)
    _box(axis, (1.9, 3.5), 3.2, 0.9, "α, β by moment matching\n(eq. 10)", GREY)
    _box(
        axis,
        (2.8, 5.2),
        4.4,
        1.1,
        "LLN attention, all tokens\n" + r"$e^{\alpha q}\,(e^{\beta k})^{T} V$",
        colour["lln"],
    )
    _box(axis, (7.6, 5.2), 4.2, 1.1, "softmax attention\ninside blocks", colour["softmax"])
    _box(axis, (5.2, 6.9), 3.4, 0.8, "mean of the two", colour["lln_diag"])
    _box(axis, (5.2, 8.2), 3.4, 0.8, "add and norm", GREY)
    _box(axis, (5.2, 9.5), 3.4, 0.8, "feed-forward, add and norm", GREY)
    for start, end in (
        ((5, 1.0), (5, 1.6)), ((3.6, 2.4), (1.9, 3.05)), ((1.9, 3.95), (2.3, 4.65)), ((4.4, 2.4), (3.6, 4.65)),
        ((6.2, 2.4), (7.6, 4.65)), ((2.8, 5.75), (4.4, 6.5)), ((7.6, 5.75), (6.0, 6.5)), ((5.2, 7.3), (5.2, 7.8)),
        ((5.2, 8.6), (5.2, 9.1)), ((5.2, 9.9), (5.2, 10.6)),
    ):  # fmt: skip
        _arrow(axis, start, end)
    axis.plot([7.3, 9.85, 9.85], [0.6, 0.6, 8.2], color=INK, lw=1.2)
    _arrow(axis, (9.85, 8.2), (6.9, 8.2))
    axis.text(9.75, 3.4, "residual", rotation=90, va="center", ha="right", fontsize=8, color=INK)
    return figure


def products(_: dict[str, Any]) -> Figure:
    """Figure 4: softmax needs the N x N matrix; linear attention multiplies keys and values first, which is d x d."""
    figure, (above, below) = panels(1, rows=2, width=8.6, height=2.9)
    colour = {name: style["color"] for name, style in looks(["softmax", "lln"]).items()}
    for axis in (above, below):
        _bare(axis, 24, 6.6)
    _matrices(above, [
        (1.0, 1.4, 4.4, "Q", "N × d", GREY), (3.6, 4.4, 1.4, "$K^T$", "d × N", GREY),
        (11.8, 4.4, 4.4, "P", "N × N", colour["softmax"]), (17.7, 1.4, 4.4, "V", "N × d", GREY),
        (21.3, 1.4, 4.4, "out", "N × d", GREY),
    ])  # fmt: skip
    _words(above, [(3.0, "·"), (9.9, "→ softmax →"), (16.95, "·"), (20.2, "=")])
    above.set_title(
        "softmax attention: the N × N matrix first, O(N² d) time and O(N²) memory", fontsize=10, color=colour["softmax"]
    )
    _matrices(below, [
        (1.0, 4.4, 1.4, r"$\Phi(K)^T$", "d × N", GREY), (6.6, 1.4, 4.4, "V", "N × d", GREY),
        (9.6, 1.4, 1.4, "S", "d × d", colour["lln"]), (14.1, 1.4, 4.4, r"$\Phi(Q)$", "N × d", GREY),
        (17.1, 1.4, 1.4, "S", "d × d", colour["lln"]), (21.3, 1.4, 4.4, "out", "N × d", GREY),
    ])  # fmt: skip
    _words(below, [(6.0, "·"), (8.8, "="), (12.5, ",  then"), (16.3, "·"), (19.9, "=")])
    below.set_title(
        "linear attention: keys times values first, O(N d²) time and O(N d) memory", fontsize=10, color=colour["lln"]
    )
    return figure


DRAWINGS = {"fig3": layer, "fig4": products}


def _bare(axis: Axes, width: float, height: float) -> None:
    axis.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axis.axis("off")


def _box(axis: Axes, centre: Point, width: float, height: float, words: str, colour: str) -> None:
    x, y = centre
    dark = colour != GREY
    axis.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.02,rounding_size=0.15",
            facecolor=colour, edgecolor=INK, lw=1.0,
        )
    )  # fmt: skip
    axis.text(x, y, words, ha="center", va="center", fontsize=9, color="white" if dark else INK)


def _arrow(axis: Axes, start: Point, end: Point) -> None:
    axis.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=INK, lw=1.2, shrinkA=0, shrinkB=0)
    )


def _matrices(axis: Axes, given: list[tuple[float, float, float, str, str, str]]) -> None:
    """(left, width, height, name, size, colour), each centred on one line."""
    for left, width, height, name, size, colour in given:
        bottom = 3.4 - height / 2
        axis.add_patch(Rectangle((left, bottom), width, height, facecolor=colour, edgecolor=INK, lw=1.0))
        dark = colour != GREY
        axis.text(left + width / 2, 3.4, name, ha="center", va="center", fontsize=10, color="white" if dark else INK)
        axis.text(left + width / 2, bottom - 0.55, size, ha="center", va="center", fontsize=8, color=INK)


def _words(axis: Axes, given: list[tuple[float, str]]) -> None:
    for x, words in given:
        axis.text(x, 3.4, words, ha="center", va="center", fontsize=11, color=INK)
