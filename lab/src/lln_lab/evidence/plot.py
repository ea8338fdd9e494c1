"""Gains over softmax with their intervals, task by task: points of accuracy on the left, nats of loss on the right."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lln_lab.evidence.plan import COMPARED
from lln_lab.evidence.standing import Compared, Standing
from lln_lab.experiments.figure import legend, looks, panels
from lln_lab.names import name_of

APART = 0.14  # between two attentions of a row
UNITS = {"%": "points of accuracy over softmax", "nats": "nats of loss below softmax"}


def draw(data: dict[str, Any]) -> Figure:
    """data: {"judged": standings of tasks that have a verdict}. Filled: equal steps; hollow: equal time."""
    judged: list[Standing] = data["judged"]
    kinds = [unit for unit in UNITS if any(each.unit == unit for each in judged)]
    most = max(sum(_rows(each) for each in judged if each.unit == unit) for unit in kinds)
    figure, axes = panels(len(kinds), height=1.5 + 0.55 * most, width=5.2)
    for axis, unit in zip(axes, kinds, strict=True):
        _panel(axis, [each for each in judged if each.unit == unit])
        axis.set_xlabel(UNITS[unit])
    legend(figure, axes)
    return figure


def _rows(found: Standing) -> int:
    return bool(found.equal_steps) + bool(found.equal_time)


def _panel(axis: Axes, judged: list[Standing]) -> None:
    named: list[str] = []
    for found in judged:
        if found.equal_steps:
            _row(axis, len(named), found.equal_steps, filled=True)
            named.append(found.task.title)
        if found.equal_time:
            _row(axis, len(named), found.equal_time, filled=False)
            named.append("at equal time" if found.equal_steps else f"{found.task.title},\nat equal time")
    axis.axvline(0, color="black", lw=0.8)
    axis.set_yticks(range(len(named)), named)
    axis.set_ylim(len(named) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


def _row(axis: Axes, place: int, compared: tuple[Compared, ...], filled: bool) -> None:
    styles = looks(COMPARED)
    for one in compared:
        look, shift = styles[one.attention], APART * (COMPARED.index(one.attention) - (len(COMPARED) - 1) / 2)
        gain = one.gain
        axis.errorbar(
            gain.mean, place + shift, xerr=[[gain.mean - gain.low], [gain.high - gain.mean]], fmt=look["marker"],
            color=look["color"], ms=6, capsize=3, mfc=look["color"] if filled else "white",
            label=name_of(one.attention) if filled else None,
        )  # fmt: skip
