"""Tables 4 and 5: the Long Range Arena. Score, time and memory of every method on Text, ListOps, Retrieval, Pathfinder, Image.

The paper uses Skyformer's code: two layers, width 64, two heads, feed-forward 128, the mean of the outputs classified.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lln.zoo.cost import saved_bytes
from lln_lab import data
from lln_lab.bench.zoo_paper import TABLE_4_MEMORY, TABLE_4_TASKS, TABLE_4_TIME
from lln_lab.data.task import spread
from lln_lab.experiments import scores
from lln_lab.experiments.budgets import budget_of
from lln_lab.experiments.check import Planned, tokens
from lln_lab.experiments.contestants import Contestant, each_once, lineup, once
from lln_lab.experiments.evidence import most_frequent
from lln_lab.experiments.grid import Job, Watcher, data_record, run_all
from lln_lab.experiments.models.roberta import LongClassifier, Size
from lln_lab.experiments.tasks import ids_and_label, padded
from lln_lab.experiments.training import Budget, Run, train
from lln_lab.experiments.training.watch import OnStep
from lln_lab.experiments.verdict import Verdict

TASKS = ("text", "listops", "retrieval", "pathfinder", "image")


@dataclass(frozen=True)
class Settings:
    size: Size
    budget: Budget
    lengths: dict[str, int]
    tasks: tuple[str, ...] = TASKS
    contestants: tuple[str, ...] = ("softmax", "reformer", "performer", "skyformer", "lln_diag")
    seeds: int = 1
    validation_rows: int = 1000
    by_task: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the budget, where a task has its own
    normalise: bool = False  # the mean of the outputs over the batch, before it is classified
    head: int = 64  # width of the layer between the mean and the classes
    source: str = ""


PRESETS = {
    "cpu": Settings(
        size=Size(layers=2, width=64, heads=2, feed_forward=128, dropout=0.0),
        budget=Budget(steps=300, batch=16, learning_rate=3e-3, warmup=30, log_every=20, save_every=100),
        lengths={"text": 1024, "listops": 128, "retrieval": 512, "pathfinder": 1024, "image": 1024},
        validation_rows=1000,
        by_task={
            "text": {"batch": 8, "learning_rate": 1e-3},
            "pathfinder": {"batch": 8},
            "image": {"batch": 8},
        },
        normalise=True,
        source="the paper's model with its mean normalised over the batch, shorter inputs and a few hundred steps",
    ),
    "paper": Settings(
        size=Size(layers=2, width=64, heads=2, feed_forward=128, dropout=0.1),
        budget=Budget(
            steps=50_000, batch=32, learning_rate=1e-4, warmup=1_000, schedule="one_cycle", weight_decay=0.0,
            adam_beta2=0.999, adam_epsilon=1e-6, clip=0.0, clip_value=1.0, precision="float16",
            log_every=100, evaluate_every=500, save_every=1_000,
        ),
        lengths={"text": 4000, "listops": 2000, "retrieval": 4000, "pathfinder": 1024, "image": 1024},
        contestants=("softmax", "reformer:rounds=2", "performer:features=128", "skyformer:landmarks=128", "lln_diag"),
        by_task={
            "text": {"warmup": 80},
            "retrieval": {"batch": 16, "learning_rate": 2e-4, "warmup": 800, "evaluate_every": 1_000},
            "pathfinder": {"batch": 128, "learning_rate": 2e-4, "warmup": 312},
            "image": {"batch": 256, "warmup": 175},
        },
        validation_rows=10_000,
        head=128,
        source="the paper's lengths and model (A.8.3), the rest from the configuration of Skyformer's code, task by task: "
        "docs/presets.md",
    ),
}  # fmt: skip

PAPER_SCORES = {
    "title": "Table 5 of the paper: LRA score [%]",
    "columns": ["method", "Text (4k)", "ListOps (2k)", "Retrieval (4k)", "Pathfinder (1k)", "Image (1k)", "average"],
    "rows": [
        ["softmax", 60.41, 38.05, 79.95, 71.3, 37.2, 57.38],
        ["reformer", 61.27, 37.05, 78.74, 67.23, 44.04, 57.67],
        ["performer", 57.85, 37.8, 80.5, 62.58, 37.56, 55.26],
        ["skyformer", 60.88, 39.36, 81.54, 70.23, 32.64, 56.93],
        ["lln_diag", 60.72, 38.91, 81.21, 69.81, 38.65, 57.86],
    ],
}
PAPER_COSTS = {
    "title": "Table 4 of the paper: time [s] and memory [MB] on a GPU",
    "columns": ["method", *(f"{task} {unit}" for unit in ("s", "MB") for task in TABLE_4_TASKS)],
    "rows": [[name, *TABLE_4_TIME[name], *TABLE_4_MEMORY[name]] for name in TABLE_4_TIME],
}


def run(
    settings: Settings, folder: Path, *, source: str | None = None, watcher: Watcher | None = None
) -> dict[str, Any]:
    """All runs of all tasks, and what they show."""
    refuse_unknown(settings)
    jobs, records = [], []
    for task in settings.tasks:
        rows = load(task, settings, source)
        records.append({**data_record(rows), "guessing": most_frequent(rows.validation)})
        entries = lineup(settings.contestants, settings.seeds, own_steps=True)
        jobs += [job(task, rows, records[-1], contestant, seed, settings) for contestant, seed in entries]
    results = run_all(jobs, folder, watcher)
    found = {
        "experiment": "lra",
        "title": "Long Range Arena (Tables 4 and 5)",
        "settings": asdict(settings),
        "data": records,
        "runs": results,
        "tables": tables(results),
    }
    return {**found, "verdicts": [verdict.as_data() for verdict in verdicts(results)]}


VOCABULARY = {"listops": 16}  # 257 of all others, where bytes and grey values are ids
CLASSES = {"listops": 10, "image": 10}  # two of all others


def planned(settings: Settings) -> list[Planned]:
    """The models of a run, for a check."""
    refuse_unknown(settings)

    def of(task: str, contestant: Contestant) -> Planned:
        length, vocabulary = settings.lengths[task], VOCABULARY.get(task, 257)

        def build(layers: int) -> LongClassifier:
            less = replace(settings, size=replace(settings.size, layers=layers))
            return classifier(task, vocabulary, CLASSES.get(task, 2), contestant, less)

        def counted(model: LongClassifier, given: dict[str, Tensor]) -> Tensor:
            texts = [given[name] for name in ("input_ids", "pair_ids") if name in given]
            return model.classified([model.pooled(model.encoder(ids).last_hidden_state) for ids in texts]).sum()

        def samples(count: int) -> dict[str, Tensor]:
            ids, mask = tokens(vocabulary, length, count), torch.ones(count, length, dtype=torch.bool)
            given = {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(count) % 2}
            return {**given, "pair_ids": ids.flip(0), "pair_mask": mask} if task == "retrieval" else given

        return Planned(task, contestant.label, budget_of(settings, task), settings.size.layers, build, samples, counted)

    return [of(task, each) for task in settings.tasks for each in each_once(settings.contestants)]


def refuse_unknown(settings: Settings) -> None:
    once("task", settings.tasks)
    if unknown := sorted(set(settings.tasks) - set(settings.lengths)):
        raise ValueError(
            f"Long Range Arena has no task {', '.join(unknown)}; choose from: {', '.join(settings.lengths)}"
        )


def of_length(settings: Settings, length: int) -> Settings:
    """The same tasks with inputs of another length; pictures have as many tokens as pixels."""
    if pictures := [task for task in settings.tasks if task in ("pathfinder", "image")]:
        raise ValueError(
            f"the length of {' and '.join(pictures)} is given by the picture, 1,024 pixels; "
            "--length is for text, listops and retrieval"
        )
    return replace(settings, lengths={**settings.lengths, **dict.fromkeys(settings.tasks, length)})


def load(task: str, settings: Settings, source: str | None) -> data.TaskData:
    """Tasks that the source does not have are generated, where they always are (ListOps, Pathfinder)."""
    options: dict[str, Any] = {} if task in ("pathfinder", "image") else {"length": settings.lengths[task]}
    try:
        rows = data.load(f"lra/{task}", source=source, **options)
    except data.MissingData:
        if task not in ("listops", "pathfinder"):
            raise
        rows = data.load(f"lra/{task}", **options)
    return replace(rows, validation=spread(rows.validation, settings.validation_rows))


def job(
    task: str, rows: data.TaskData, record: dict[str, Any], contestant: Contestant, seed: int, settings: Settings
) -> Job:
    length = settings.lengths[task]
    budget = contestant.budget(budget_of(settings, task))
    size = replace(settings.size, length=length)
    described = Run(
        task, contestant.name, seed, budget, contestant.label, contestant.options,
        {**asdict(size), "normalise": settings.normalise, "head": settings.head}, record, contestant.steps is not None,
    )  # fmt: skip

    def build() -> nn.Module:
        return classifier(task, int(rows.vocabulary or 0), int(rows.classes or 0), contestant, settings)

    def start(at: Path, on_step: OnStep | None) -> dict[str, Any]:
        found = train(
            described, at, build, rows.train, rows.validation, ids_and_label,  # type: ignore[arg-type]
            collate=padded(0), metrics=scores.accuracy, on_step=on_step,
        )  # fmt: skip
        return {**found, "saved_bytes": kept_for_backward(build(), rows, budget.batch)}

    return Job(described, start)


def classifier(task: str, vocabulary: int, classes: int, contestant: Contestant, settings: Settings) -> LongClassifier:
    return LongClassifier(
        replace(settings.size, length=settings.lengths[task]),
        vocabulary,
        classes,
        contestant.name,
        contestant.options,
        pairs=task == "retrieval",
        normalise=settings.normalise,
        head=settings.head,
    )


def kept_for_backward(model: nn.Module, rows: data.TaskData, batch: int) -> int:
    """Bytes that autograd keeps for one step: counted, so neither the machine nor its load matters."""
    first = padded(0)([{**rows.train[i], "labels": rows.train[i]["label"]} for i in range(min(batch, len(rows.train)))])
    ids: Tensor = first.pop("input_ids")
    return saved_bytes(model, ids, **first)


def tables(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    note = "Same heads, data order and budget for all; ± is the standard deviation over seeds."
    score = scores.table(results, "Score [%]", note)

    def fastest(runs: list[dict[str, Any]]) -> float | None:
        times = [run["seconds_per_step"] for run in runs if run["seconds_per_step"]]
        return round(min(times), 3) if times else None

    def megabytes(runs: list[dict[str, Any]]) -> float:
        return round(runs[0]["saved_bytes"] / 2**20, 1)

    time = scores.table(results, "Seconds per step", "The median of a run's steps; the fastest seed.", fastest)
    memory = scores.table(results, "Megabytes kept for the backward pass", "Counted, one step.", megabytes)
    return [{**score, "paper": PAPER_SCORES}, {**time, "paper": PAPER_COSTS}, memory, scores.minutes(results)]


def verdicts(results: Sequence[dict[str, Any]]) -> list[Verdict]:
    """The paper's claim of Table 5: LLN+Diag scores like softmax."""
    found = []
    for task in dict.fromkeys(r["task"] for r in results):
        found += scores.against(results, task, f"LLN+Diag scores as softmax does on {task} (Table 5)")
        found += scores.ahead_of_linear(results, task)
    return found
