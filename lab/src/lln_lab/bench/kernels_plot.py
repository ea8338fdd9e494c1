"""The plot of `lln bench kernels`: ratios to the bare products against the length."""

from typing import Any

from matplotlib.figure import Figure

from lln_lab.experiments.figure import legend, lengths_along, looks, panels


def draw(result: dict[str, Any]) -> Figure:
    """One panel for forward and one for forward + backward, for each number of threads."""
    threads = sorted({row["threads"] for row in result["timings"]})
    look = looks(name for row in result["timings"] for name in row["methods"])
    figure, axes = panels(2, rows=len(threads), width=4.6, height=3.6)
    places = iter(axes)
    for number in threads:
        for backward in (False, True):
            rows = [row for row in result["timings"] if row["threads"] == number and row["backward"] == backward]
            axis = next(places)
            for name in rows[0]["methods"]:
                points = [(row["length"], row["methods"][name]["ratio"]) for row in rows if name in row["methods"]]
                axis.plot(*zip(*points, strict=True), label=name, **look[name])
            axis.set(yscale="log", ylabel="time / bare products")
            lengths_along(axis, (row["length"] for row in rows))
            axis.set_title(f"{'forward + backward' if backward else 'forward'}, {number} thread{'s' * (number > 1)}")
    legend(figure, axes)
    return figure
