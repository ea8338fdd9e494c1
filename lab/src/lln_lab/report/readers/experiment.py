"""A training experiment: runs with histories, tables beside the paper's, timing against length, attention maps."""

import re
from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean
from typing import Any

from lln_lab.history import MEANS, regular
from lln_lab.names import name_of, task_of
from lln_lab.report.blocks import Block, Table
from lln_lab.report.collect import is_single_run
from lln_lab.report.maps import Maps, read_map
from lln_lab.report.numbers import natural, words
from lln_lab.report.plots import Axis, Line, Option, Plot, Selector, against_length, choices, finite
from lln_lab.report.readers.reader import EXPERIMENTS, Reader

ATTENTION = re.compile(r"attention/([^/]+)/(.+)")
NOT_MEASURES = {"step", "epoch"}
MEASURES = {"grad_norm": "gradient norm", "gap": "spectral gap"}
UNITS = {"entropy": "entropy (bits)"}
LOGARITHMIC = {"grad_norm", "inverse_loss_scale", "loss_scale"}


def knows(data: dict[str, Any]) -> bool:
    return "experiment" in data or is_single_run(data)


def title(data: dict[str, Any]) -> str | None:
    if "experiment" in data:
        return str(data.get("title") or words(str(data["experiment"])))
    run = _Run(data, 1)
    return ", ".join(filter(None, ("A single run", run.task, run.label, f"seed {data.get('seed')}")))


def tables(data: dict[str, Any]) -> list[Block]:
    return [_table(entry) for entry in data.get("tables") or ()]


def training_curves(data: dict[str, Any]) -> list[Block]:
    """Loss, gradient norm and whatever else was logged: training solid, validation ("eval_…") dashed."""
    lines: list[Line] = []
    for run in _runs(data):
        keys = dict.fromkeys(key for row in run.history for key in row if not ATTENTION.fullmatch(key))
        for key in keys:
            x, y = run.series(key)
            if key in NOT_MEASURES or not any(map(finite, y)):
                continue
            validation = key.startswith("eval_")
            name = ", ".join(filter(None, (run.seed_if_several, "validation" if validation else "")))
            at = {"measure": measure(key.removeprefix("eval_")), "attention": run.label, "task": run.task}
            lines.append(Line(at, x, y, name, validation))
    if not lines:
        return []
    lines += loss_to_softmax(list(_runs(data)))
    axes = {measure(key): Axis(measure(key), log=True) for key in LOGARITHMIC}
    measures = choices("Measure", "measure", lines, axes)
    measures = Selector("Measure", [_with_axis(option) for option in measures.options])
    note = "Solid: training. Dashed: validation." if any(line.dashed for line in lines) else ""
    selectors = [measures, choices("Task", "task", lines)]
    return [Plot("Training", Axis("step"), Axis("loss"), "attention", lines, selectors, note)]


def loss_to_softmax(runs: list["_Run"]) -> list[Line]:
    """loss - softmax's of the same task, seed and step, mean over seeds: what curves on top of each other do not show."""
    softmax = {(run.task, run.data.get("seed")): run for run in runs if run.label == "softmax"}
    lines = []
    for task, label in dict.fromkeys((run.task, run.label) for run in runs if run.label != "softmax"):
        for key in ("loss", "eval_loss"):
            gains: dict[int, list[float]] = {}
            for run in runs:
                beside = softmax.get((run.task, run.data.get("seed")))
                if (run.task, run.label) == (task, label) and beside is not None:
                    theirs = beside.stretches(key)
                    for (since, step), value in run.stretches(key).items():
                        other = theirs.get((since, step))
                        if finite(value) and finite(other):
                            gains.setdefault(step, []).append(value - other)
            if gains:
                at = {"measure": "loss to softmax's", "attention": label, "task": task}
                name, means = "validation" if key == "eval_loss" else "", [fmean(x) for x in gains.values()]
                lines.append(Line(at, list(gains), means, name, key == "eval_loss"))
    return lines


def training_differences(data: dict[str, Any]) -> list[Block]:
    """The loss minus softmax's: where curves lie on top of each other, this is what there is to see."""
    lines = loss_to_softmax(list(_runs(data)))
    if not lines:
        return []
    zero = sorted({step for line in lines for step in line.x if step is not None})
    lines.append(Line({"attention": "softmax", "measure": lines[0].at["measure"]}, zero, [0.0] * len(zero)))
    note = "Below zero is better than softmax. Same batches and masks at every step. Dashed: validation."
    return [Plot("Loss minus softmax's while training", Axis("step"), Axis("nats"), "attention", lines, note=note)]


def concentration(data: dict[str, Any]) -> list[Block]:
    """Temperature, entropy and spectral gap over time: the layers of one run, or all runs at one layer."""
    lines: list[Line] = []
    for run in _runs(data):
        keys = dict.fromkeys(key for row in run.history for key in row)
        found = [match for key in keys if (match := ATTENTION.fullmatch(key))]
        for match in sorted(found, key=lambda match: natural(match[1])):
            at = {"measure": measure(match[2]), "run": run.name, "attention": run.label, "layer": f"layer {match[1]}"}
            lines.append(Line(at, *run.series(match[0]), run.details))
    return [per_layer("Concentration of attention", lines)] if lines else []


def runs(data: dict[str, Any]) -> list[Block]:
    """What every run took and reached, one row each. What was evaluated keeps its column where no run has a number."""
    rows: list[dict[str, Any]] = []
    evaluated: set[str] = set()
    for run in _runs(data):
        known = {
            "run": run.label,
            "task": run.task,
            "seed": run.data.get("seed"),
            "steps": run.data.get("steps"),
            "parameters": run.data.get("parameters"),
            "seconds per step": run.data.get("seconds_per_step"),
            "peak memory (MB)": _megabytes(run.data.get("peak_bytes")),
        }
        reached = {measure(key): value for key, value in (run.data.get("evaluation") or {}).items()}
        evaluated.update(reached)
        rows.append(known | reached)
    filled = {key for row in rows for key, value in row.items() if value not in (None, "")} | evaluated
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key in filled]
    cells = [[row.get(key) for key in columns] for row in rows]
    return [Table(columns, cells, "Every run", folded=bool(data.get("tables")))] if rows else []


def timing(data: dict[str, Any]) -> list[Block]:
    found = data.get("timing")
    if not found:
        return []
    lengths = found["lengths"]
    measured = {
        name: {name_of(str(series["label"])): (lengths, series[key]) for series in found["series"] if series.get(key)}
        for name, key in (("time", "seconds"), ("memory", "bytes"))
    }
    return [against_length("Time and memory against length", measured)]


def attention_maps(data: dict[str, Any]) -> list[Block]:
    maps = [read_map(entry) for entry in data.get("maps") or ()]
    return [Maps("Attention maps", maps)] if maps else []


PARTS = (tables, training_curves, concentration, timing, attention_maps, runs)
OPENING = (timing, training_differences, attention_maps, tables, training_curves, concentration, runs)
READER = Reader(EXPERIMENTS, knows, title, PARTS, OPENING)


def measure(key: str) -> str:
    return UNITS.get(key) or MEASURES.get(key) or words(key)


def per_layer(title: str, lines: list[Line]) -> Plot:
    """Lines with a measure, a run, an attention and a layer."""
    layers = [
        Option(run, {"run": run}, "layer", group="Every layer of") for run in dict.fromkeys(x.at["run"] for x in lines)
    ]
    names = sorted(dict.fromkeys(line.at["layer"] for line in lines), key=natural)
    across = [Option(layer, {"layer": layer}, "attention", group="Every run at") for layer in names]
    view = Selector("Show", layers + across if len(layers) > 1 else layers)
    measures = choices("Measure", "measure", lines)
    measures = Selector("Measure", [_with_axis(option) for option in measures.options])
    return Plot(title, Axis("step"), Axis(""), "layer", lines, [measures, view], ordinal=("layer",))


class _Run:
    """One entry of "runs", with names for what may be missing."""

    def __init__(self, data: dict[str, Any], number: int) -> None:
        self.data = data
        self.label = name_of(str(data.get("label") or data.get("attention") or f"run {number}"))
        self.task = task_of(str(data.get("task") or ""))
        self.history = [row for row in data.get("history") or () if isinstance(row, dict)]
        self.name = self.label  # unique within the result
        self.details = ""  # what tells it from others of the same label
        self.seed_if_several = ""

    def series(self, key: str) -> tuple[list[Any], list[Any]]:
        rows = [row for row in self.history if key in row]
        steps, values = [row.get("step", at) for at, row in enumerate(rows)], [row[key] for row in rows]
        if key in MEANS and all(map(finite, [*steps, *values])):
            points = regular(list(zip(steps, values, strict=True)))
            return [step for step, _ in points], [value for _, value in points]
        return steps, values

    def stretches(self, key: str) -> dict[tuple[int, int], Any]:
        """(step of the entry before, step) -> value: a logged training loss is the mean since the entry before it."""
        steps, values = self.series(key)
        return dict(zip(pairwise([0, *steps]), values, strict=True))


def _runs(data: dict[str, Any]) -> Iterator[_Run]:
    found = [
        _Run(entry, number) for number, entry in enumerate([data] if is_single_run(data) else data.get("runs") or (), 1)
    ]
    tasks = {run.task for run in found}
    names: set[str] = set()
    for number, run in enumerate(found, 1):
        same = [other for other in found if (other.label, other.task) == (run.label, run.task)]
        seed = run.data.get("seed")
        run.seed_if_several = f"seed {seed}" if len(same) > 1 and seed is not None else ""
        run.details = ", ".join(filter(None, (run.task if len(tasks) > 1 else "", run.seed_if_several)))
        run.name = ", ".join(filter(None, (run.label, run.details)))
        if run.name in names:
            run.name += f" ({number})"
        names.add(run.name)
        yield run


def _table(entry: dict[str, Any]) -> Table:
    paper = entry.get("paper")
    return Table(
        [name_of(task_of(str(column))) for column in entry.get("columns") or ()],
        [[name_of(cell) if isinstance(cell, str) else cell for cell in row] for row in entry.get("rows") or ()],
        str(entry.get("title") or ""),
        str(entry.get("note") or ""),
        _table(paper) if paper else None,
    )


def _with_axis(option: Option) -> Option:
    return Option(option.label, option.where, option.by, option.y or Axis(option.label), option.group)


def _megabytes(size: Any) -> float | None:
    return size / 1e6 if finite(size) else None
