"""Quality against length: associative recall and a needle in noise, as sequences grow to 32,000 tokens.

What the paper leaves open: does a linear attention still find one token among many? From scratch LLN+Diag did not find it
among 1,024 in 300 steps (by hand), so every model begins at 64 tokens and goes on at twice the length, and again:
`later_steps` at each, then it is tested there. Softmax goes as far as it fits.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file

from lln_lab import data
from lln_lab.data.needle import Needle
from lln_lab.data.recall import Recall
from lln_lab.data.task import spread
from lln_lab.experiments import scores
from lln_lab.experiments.check import Planned, tokens
from lln_lab.experiments.contestants import Contestant, each_once, lineup, once
from lln_lab.experiments.figure import legend, lengths_along, looks, panels
from lln_lab.experiments.grid import Job, Watcher, data_record, mean_and_spread, run_all
from lln_lab.experiments.models.roberta import Finder, Size
from lln_lab.experiments.training import Budget, Run, train
from lln_lab.experiments.training.watch import OnStep
from lln_lab.names import name_of

CHANCE = {"recall": 1 / Recall().symbols, "needle": 1 / Needle().values}


@dataclass(frozen=True)
class Settings:
    size: Size
    budget: Budget  # at the first length
    later_steps: int  # at each length after it, with half the rate
    tokens: int  # of a step, as far as `fewest` samples allow
    lengths: tuple[int, ...]
    longest_softmax: int
    fewest: int = 4
    tasks: tuple[str, ...] = ("recall", "needle")
    contestants: tuple[str, ...] = ("softmax", "lln", "lln_diag", "elu", "performer", "cosformer")
    seeds: int = 1
    validation_rows: int = 128
    source: str = ""


PRESETS = {
    "cpu": Settings(
        size=Size(layers=2, width=64, heads=2, feed_forward=128, dropout=0.0),
        budget=Budget(steps=500, batch=64, learning_rate=2e-3, warmup=30, log_every=20, save_every=100),
        later_steps=40,
        tokens=8192,
        lengths=tuple(2**n for n in range(6, 13)),
        longest_softmax=4096,
        source="two layers of width 64, a few hundred steps",
    ),
    "paper": Settings(
        size=Size(layers=4, width=256, heads=4, feed_forward=1024, dropout=0.0),
        budget=Budget(steps=5_000, batch=64, learning_rate=1e-3, warmup=500, log_every=100, save_every=1_000),
        later_steps=2_000,
        tokens=65_536,
        lengths=tuple(2**n for n in range(6, 16)),
        longest_softmax=16_384,
        validation_rows=1_000,
        source="not in the paper: sizes for one GPU",
    ),
}


def run(
    settings: Settings, folder: Path, *, source: str | None = None, watcher: Watcher | None = None
) -> dict[str, Any]:
    if source is not None:
        raise ValueError("recall and needle are generated: they take no --data")
    once("task", settings.tasks)
    if unknown := sorted(set(settings.tasks) - set(CHANCE)):
        raise ValueError(f"unknown task {', '.join(unknown)}; choose from: {', '.join(CHANCE)}")
    if any(shorter >= longer for shorter, longer in pairwise(settings.lengths)):
        raise ValueError(f"lengths must be increasing; got {', '.join(map(str, settings.lengths))}")
    jobs, records = [], []
    for task in settings.tasks:
        by_length = {length: load(task, length, settings) for length in settings.lengths}
        records += [data_record(rows) for rows in by_length.values()]
        for contestant, seed in lineup(settings.contestants, settings.seeds):
            before: Run | None = None
            for length, rows in by_length.items():
                if contestant.name == "softmax" and length > settings.longest_softmax:
                    break
                made = job(task, length, rows, contestant, seed, settings, folder, before)
                jobs.append(made)
                before = made.run
    results = run_all(jobs, folder, watcher)
    chance = ", ".join(f"{100 * CHANCE[task]:.1f} % ({task})" for task in settings.tasks)
    note = f"Each model goes on from the length before. Same data order and budget for all. Chance: {chance}."
    return {
        "experiment": "length",
        "title": "Quality against length: recall and needle",
        "settings": asdict(settings),
        "data": records,
        "runs": results,
        "tables": [scores.table(of_task(results, task), f"{task}: accuracy [%]", note) for task in settings.tasks],
        "verdicts": [],
    }


def planned(settings: Settings) -> list[Planned]:
    """The models of a run, for a check: counted at the longest sequences, one step at the shortest."""

    def of(task: str, contestant: Contestant) -> Planned:
        rows, longest = data.load(task, length=settings.lengths[0]), settings.lengths[-1]
        if contestant.name == "softmax":
            longest = min(longest, settings.longest_softmax)
        size = replace(settings.size, length=settings.lengths[-1])

        def build(layers: int) -> Finder:
            less = replace(size, layers=layers)
            return Finder(less, int(rows.vocabulary or 0), int(rows.classes or 0), contestant.name, contestant.options)

        def samples(length: int) -> Callable[[int], dict[str, Any]]:
            def make(count: int) -> dict[str, Any]:
                ids = tokens(int(rows.vocabulary or 0), length, count)
                return {"input_ids": ids, "labels": torch.where(torch.arange(length) < length - 1, -100, 0 * ids)}

            return make

        return Planned(
            f"{task}/{longest}", contestant.label, budget_at(longest, settings), settings.size.layers, build,
            samples(longest), lambda model, x: model.head(model.encoder(x["input_ids"]).last_hidden_state[:, -1:]).sum(),
            samples(settings.lengths[0]),
        )  # fmt: skip

    return [of(task, each) for task in settings.tasks for each in each_once(settings.contestants)]


def of_task(results: Sequence[dict[str, Any]], task: str) -> list[dict[str, Any]]:
    """The task's results, named by their length alone."""
    return [{**r, "task": r["task"].split("/")[1]} for r in results if r["task"].startswith(task)]


def load(task: str, length: int, settings: Settings) -> data.TaskData:
    rows = data.load(task, length=length)
    return replace(rows, validation=spread(rows.validation, settings.validation_rows))


def budget_at(length: int, settings: Settings) -> Budget:
    first = settings.budget
    batch = max(settings.fewest, min(first.batch, settings.tokens // length))
    if length == settings.lengths[0]:
        return replace(first, batch=batch)
    later = first.shortened(min(first.steps, settings.later_steps))
    return replace(later, batch=batch, learning_rate=first.learning_rate / 2)


def job(
    task: str, length: int, rows: data.TaskData, contestant: Contestant, seed: int, settings: Settings, folder: Path,
    before: Run | None,
) -> Job:  # fmt: skip
    """Training at one length, from the weights of the run `before` it."""
    size = replace(settings.size, length=settings.lengths[-1])  # one table of positions at every length
    record = data_record(rows) if before is None else {**data_record(rows), "goes_on_from": before.name}
    described = Run(
        f"{task}/{length}", contestant.name, seed, budget_at(length, settings), contestant.label, contestant.options,
        asdict(size), record,
    )  # fmt: skip

    def build() -> Finder:
        model = Finder(size, int(rows.vocabulary or 0), int(rows.classes or 0), contestant.name, contestant.options)
        if before is not None:
            model.load_state_dict(load_file(folder / before.name / "model" / "model.safetensors"))
        return model

    def start(at: Path, on_step: OnStep | None) -> dict[str, Any]:
        return train(
            described, at, build, rows.train, rows.validation, lambda row, _: row,  # type: ignore[arg-type]
            metrics=asked_accuracy, on_step=on_step, keep_model=True,
        )  # fmt: skip

    return Job(described, start)


def asked_accuracy(predicted: Any) -> dict[str, float]:
    """The model predicts at the asked positions only, in their order."""
    asked = predicted.label_ids[predicted.label_ids != -100]
    return {"accuracy": float(numpy.mean(predicted.predictions.argmax(-1).flatten() == asked))}


def draw(found: dict[str, Any]) -> Figure:
    tasks = list(dict.fromkeys(r["task"].split("/")[0] for r in found["runs"]))
    figure, axes = panels(len(tasks))
    look = looks(r["label"] for r in found["runs"])
    for axis, task in zip(axes, tasks, strict=True):
        for label in look:
            points = _by_length([r for r in of_task(found["runs"], task) if r["label"] == label])
            axis.plot(list(points), [100 - score for score in points.values()], label=name_of(label), **look[label])
        axis.set(ylabel="errors [%]", title=f"{task} (guessing: {100 - 100 * CHANCE[task]:.0f} % errors)")
        axis.set_ylim(bottom=0, top=max(2.0, axis.get_ylim()[1]))
        lengths_along(axis, (int(r["task"]) for r in of_task(found["runs"], task)))
    legend(figure, axes[:1])
    return figure


def _by_length(results: Sequence[dict[str, Any]]) -> dict[int, float]:
    lengths = sorted({int(r["task"]) for r in results})
    return {
        length: mean_and_spread([100 * scores.score_of(r) for r in results if r["task"] == str(length)])[0]
        for length in lengths
    }
