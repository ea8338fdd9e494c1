"""Quality against length: associative recall and a needle in noise, from 1,000 to 32,000 tokens.

What the paper leaves open: does a linear attention still find one token among many? Every method trains on each length with
the same number of steps; softmax as far as it fits.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy
from matplotlib.figure import Figure

from lln import data
from lln.data.task import spread
from lln.experiments import scores
from lln.experiments.contestants import Contestant, lineup
from lln.experiments.figure import panels
from lln.experiments.grid import Job, Watcher, data_record, mean_and_spread, run_all
from lln.experiments.models.roberta import MaskedLanguageModel, Size, configuration
from lln.experiments.training import Budget, Run, train
from lln.experiments.training.watch import OnStep


@dataclass(frozen=True)
class Settings:
    size: Size
    budget: Budget
    lengths: tuple[int, ...]
    longest_softmax: int
    tasks: tuple[str, ...] = ("recall", "needle")
    contestants: tuple[str, ...] = ("softmax", "lln", "lln_diag", "elu", "performer", "cosformer")
    seeds: int = 1
    pairs: int = 8
    validation_rows: int = 128
    source: str = ""


PRESETS = {
    "cpu": Settings(
        size=Size(layers=2, width=64, heads=2, feed_forward=128, dropout=0.0),
        budget=Budget(steps=300, batch=8, learning_rate=2e-3, warmup=30, log_every=20, save_every=100),
        lengths=(1024, 4096),
        longest_softmax=4096,
        source="two layers of width 64, a few hundred steps",
    ),
    "paper": Settings(
        size=Size(layers=4, width=256, heads=4, feed_forward=1024, dropout=0.0),
        budget=Budget(steps=20_000, batch=32, learning_rate=1e-3, warmup=1_000, log_every=100, save_every=1_000),
        lengths=(1024, 2048, 4096, 8192, 16_384, 32_768),
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
    jobs, records = [], []
    for task in settings.tasks:
        for length in settings.lengths:
            rows = load(task, length, settings)
            records.append(data_record(rows))
            jobs += [
                job(f"{task}/{length}", rows, length, contestant, seed, settings)
                for contestant, seed in lineup(settings.contestants, settings.seeds)
                if contestant.name != "softmax" or length <= settings.longest_softmax
            ]
    results = run_all(jobs, folder, watcher)
    note = "Same data order and budget for all. Chance: 1.6 % (recall), 3.1 % (needle)."
    return {
        "experiment": "length",
        "title": "Quality against length: recall and needle",
        "settings": asdict(settings),
        "data": records,
        "runs": results,
        "tables": [scores.table(results, "Accuracy [%]", note)],
        "verdicts": [],
    }


def load(task: str, length: int, settings: Settings) -> data.TaskData:
    options: dict[str, Any] = {"pairs": settings.pairs} if task == "recall" else {}
    rows = data.load(task, length=length, **options)
    return replace(rows, validation=spread(rows.validation, settings.validation_rows))


def job(task: str, rows: data.TaskData, length: int, contestant: Contestant, seed: int, settings: Settings) -> Job:
    size = replace(settings.size, length=length)
    described = Run(
        task, contestant.name, seed, settings.budget, contestant.label, contestant.options, asdict(size),
        data_record(rows),
    )  # fmt: skip

    def build() -> MaskedLanguageModel:
        config = configuration(size, int(rows.vocabulary or 0), padding=0)
        return MaskedLanguageModel(config, contestant.name, contestant.options)

    def start(at: Path, on_step: OnStep | None) -> dict[str, Any]:
        return train(
            described, at, build, rows.train, rows.validation, lambda row, _: row,  # type: ignore[arg-type]
            metrics=asked_accuracy, on_step=on_step,
        )  # fmt: skip

    return Job(described, start)


def asked_accuracy(predicted: Any) -> dict[str, float]:
    """The model predicts at the asked positions only, in their order."""
    asked = predicted.label_ids[predicted.label_ids != -100]
    return {"accuracy": float(numpy.mean(predicted.predictions.argmax(-1) == asked))}


def draw(found: dict[str, Any]) -> Figure:
    tasks = list(dict.fromkeys(r["task"].split("/")[0] for r in found["runs"]))
    figure, axes = panels(len(tasks))
    labels = list(dict.fromkeys(r["label"] for r in found["runs"]))
    for axis, task in zip(axes, tasks, strict=True):
        for label in labels:
            points = _by_length([r for r in found["runs"] if r["label"] == label and r["task"].startswith(task)])
            axis.plot(list(points), list(points.values()), "o-", label=label, ms=3)
        axis.set(xscale="log", xlabel="length", ylabel="accuracy [%]", title=task)
    axes[0].legend(fontsize=8)
    return figure


def _by_length(results: Sequence[dict[str, Any]]) -> dict[int, float]:
    lengths = sorted({int(r["task"].split("/")[1]) for r in results})
    return {
        length: mean_and_spread([100 * scores.score_of(r) for r in results if r["task"].endswith(f"/{length}")])[0]
        for length in lengths
    }
