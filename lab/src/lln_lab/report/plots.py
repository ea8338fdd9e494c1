"""Plots as data: lines that say what they are (`at`), and selectors that choose among them. The page draws them.

A line is shown when each selector's chosen option agrees with it; `by` names the property that colours and labels it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lln_lab.colours import MARKERS, styles

POINTS = 30_000  # of a plot; more are thinned
FEWEST = 40  # points that every line keeps

Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Axis:
    label: str
    unit: str = ""  # "s" and "B" are shown with their prefixes
    log: bool = False


@dataclass(frozen=True)
class Line:
    at: dict[str, str]
    x: Numbers
    y: Numbers
    name: str = ""  # beyond the label: a seed, "validation"
    dashed: bool = False


@dataclass(frozen=True)
class Option:
    label: str
    where: dict[str, str]
    by: str | None = None
    y: Axis | None = None
    group: str = ""


@dataclass(frozen=True)
class Selector:
    label: str
    options: list[Option]


@dataclass(frozen=True)
class Plot:
    title: str
    x: Axis
    y: Axis
    by: str
    lines: list[Line]
    selectors: list[Selector] = field(default_factory=list)
    note: str = ""
    ordinal: tuple[str, ...] = ()  # properties in an order, coloured along a scale: layers

    def as_data(self) -> dict[str, Any]:
        drawn = [line for line in map(_clean, self.lines) if line.x]
        limit = max(FEWEST, POINTS // max(1, len(drawn)))
        thin = any(len(line.x) > limit for line in drawn)
        thinned = f"Lines of more than {limit:,} points are thinned to the extremes of equal stretches." if thin else ""
        properties = {key: None for line in drawn for key in line.at}
        return {
            "title": self.title,
            "note": " ".join(filter(None, (self.note, thinned))),
            "x": _axis(self.x),
            "y": _axis(self.y),
            "by": self.by,
            "styles": {
                key: self._styles(key, [line.at[key] for line in drawn if key in line.at]) for key in properties
            },
            "selectors": [
                {"label": selector.label, "options": [_option(option) for option in selector.options]}
                for selector in self.selectors
            ],
            "lines": [_line(_thin(line, limit)) for line in drawn],
        }

    def _styles(self, key: str, values: Iterable[str]) -> dict[str, dict[str, float]]:
        """Colour and marker of every value: along a scale from 0 to 1, or one of the palette."""
        unique = list(dict.fromkeys(values))
        if key in self.ordinal:
            last = max(1, len(unique) - 1)
            return {value: {"scale": round(i / last, 3), "marker": i % MARKERS} for i, value in enumerate(unique)}
        return {
            value: {"colour": style.colour, "marker": style.marker, "tint": style.tint}
            for value, style in styles(unique).items()
        }


def choices(label: str, key: str, lines: Iterable[Line], axes: dict[str, Axis] | None = None) -> Selector:
    """A selector over all values that `key` takes, in the order they come; `axes` gives each value its y axis."""
    values = dict.fromkeys(line.at[key] for line in lines if key in line.at)
    return Selector(label, [Option(value, {key: value}, y=(axes or {}).get(value)) for value in values])


def against_length(
    title: str, measured: Mapping[str, Mapping[str, tuple[Numbers, Numbers]]], x: str = "length", note: str = ""
) -> Plot:
    """{"time" or "memory": {label: (lengths, values)}} on logarithmic axes."""
    axes = {"time": Axis("time", "s", log=True), "memory": Axis("memory", "B", log=True)}
    lines = [
        Line({"measure": measure, "attention": label}, lengths, values)
        for measure, series in measured.items()
        for label, (lengths, values) in series.items()
    ]
    selector = choices("Measure", "measure", lines, axes)
    return Plot(title, Axis(x, log=True), axes["time"], "attention", lines, [selector], note)


def finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _clean(line: Line) -> Line:
    """Pairs with a number for x and, at least somewhere, one for y: the rest of y is a gap."""
    pairs = [(x, y if finite(y) else None) for x, y in zip(line.x, line.y, strict=False) if finite(x)]
    if all(y is None for _, y in pairs):
        pairs = []
    return Line(line.at, [x for x, _ in pairs], [y for _, y in pairs], line.name, line.dashed)


def _thin(line: Line, limit: int) -> Line:
    """The first and last point, and the extremes of equal stretches: spikes stay."""
    if len(line.x) <= limit:
        return line
    stretch = 2 * len(line.x) / (limit - 2)
    keep = {0, len(line.x) - 1}
    for part in range((limit - 2) // 2):
        inside = range(round(part * stretch), min(len(line.x), round((part + 1) * stretch)))
        values = [(value, at) for at in inside if (value := line.y[at]) is not None]
        keep.update({min(values)[1], max(values)[1]} if values else inside[:1])
    at = sorted(keep)
    return Line(line.at, [line.x[i] for i in at], [line.y[i] for i in at], line.name, line.dashed)


def _axis(axis: Axis) -> dict[str, Any]:
    return {"label": axis.label, "unit": axis.unit, "log": axis.log}


def _option(option: Option) -> dict[str, Any]:
    y = None if option.y is None else _axis(option.y)
    return {"label": option.label, "where": option.where, "by": option.by, "y": y, "group": option.group}


def _line(line: Line) -> dict[str, Any]:
    return {
        "at": line.at,
        "name": line.name,
        "dashed": line.dashed,
        "x": [_short(x) for x in line.x],
        "y": [_short(y) for y in line.y],
    }


def _short(value: float | None) -> float | None:
    """Six significant digits: more than the page shows, and a third of the bytes."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
