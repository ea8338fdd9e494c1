"""Time and memory against the length, drawn from the benchmark's JSON."""

from typing import Any

from matplotlib.figure import Figure

from lln_lab.experiments.figure import legend, lengths_along, looks, panels, plain_log
from lln_lab.names import name_of

PANELS = (("step_seconds", "seconds per training step", 1.0), ("peak_bytes", "peak memory [GB]", 1e9))
EMPHASIS = ("softmax", "lln", "lln_diag")


def draw(result: dict[str, Any]) -> Figure:
    """One row of panels per shape; softmax and LLN stand out."""
    shapes = list(result["plan"]["lengths"])
    look = looks(r["member"] for r in result["rows"])
    figure, axes = panels(2, rows=len(shapes), width=4.6, height=3.8)
    places = iter(axes)
    for shape in shapes:
        for measure, label, unit in PANELS:
            axis = next(places)
            for member in look:
                points = [
                    (r["length"], r[measure] / unit)
                    for r in result["rows"]
                    if r["member"] == member and r["shape"] == shape and r["status"] == "ok"
                ]
                if points:
                    width = 2.5 if member in EMPHASIS else 1.0
                    axis.plot(*zip(*sorted(points), strict=True), label=name_of(member), lw=width, **look[member])
            axis.set_title(f"{shape}: {label}")
            plain_log(axis)
            lengths_along(axis, (r["length"] for r in result["rows"] if r["shape"] == shape))
    legend(figure, axes)
    return figure
