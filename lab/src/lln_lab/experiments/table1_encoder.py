"""Table 1 after the best pre-training there is: an encoder that others trained, converted in closed form, then fine-tuned.

Our own pre-training is short, and tasks such as MNLI stay near guessing after it. A sentence encoder (a BERT, such as
all-MiniLM-L6-v2) knows its language: softmax's own self and its conversions get a linear classifier on the mean of their
outputs and are fine-tuned whole, on the same batches. Most texts have 20 to 60 tokens: in blocks of 64 nearly all attention is
near and exact. `near_far:block_size=16` leaves something far.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.conversion.checkpoint import fingerprint
from lln_lab import data
from lln_lab.data.task import Selection, spread
from lln_lab.experiments import scores, table1
from lln_lab.experiments.check import Planned, tokens
from lln_lab.experiments.contestants import Contestant, each_once, lineup, once
from lln_lab.experiments.converted import against_softmax
from lln_lab.experiments.grid import Job, Watcher, data_record, run_all
from lln_lab.experiments.models.pretrained import (
    PooledClassifier,
    described,
    invented,
    read_encoder,
    refuse_unconvertible,
    shape_of,
)
from lln_lab.experiments.tasks import Row, padded
from lln_lab.experiments.training import Budget, Run, train
from lln_lab.experiments.training.watch import OnStep
from lln_lab.experiments.verdict import Verdict


@dataclass(frozen=True)
class Settings:
    budget: Budget
    tasks: tuple[str, ...] = ("sst2", "qnli", "mnli", "qqp")
    contestants: tuple[str, ...] = ("softmax", "lln_diag", "near_far")
    seeds: int = 1
    length: int = 128
    validation_rows: int = 1000
    calibration: int = 64  # training texts, of the longer half, that the conversion is fitted to
    source: str = ""


PRESETS = {
    "cpu": Settings(
        budget=Budget(
            steps=400, batch=16, learning_rate=1e-4, warmup=40, adam_beta2=0.999, log_every=25, save_every=200
        ),
        source="not in the paper: somebody else's pre-training, and 6,400 texts of each task",
    ),
}  # fmt: skip


def run(
    settings: Settings, folder: Path, *, model: str, source: str | None = None, watcher: Watcher | None = None
) -> dict[str, Any]:
    """All runs, and what they show. `model` is a folder, or a name on the hub."""
    once("task", settings.tasks)
    entries = lineup(settings.contestants, settings.seeds)
    for contestant, _ in entries:
        refuse_unconvertible(contestant)
    tokenizer, encoder = read_encoder(model)
    by_task = {task: load(task, settings, source) for task in settings.tasks}
    records = {task: {**data_record(rows), "guessing": table1.guess(task, rows)} for task, rows in by_task.items()}
    make = tokenized(tokenizer, settings.length)
    collate = padded(int(tokenizer.pad_token_id or 0))
    sizes = described(encoder.config, model, settings.length, settings.calibration)
    sizes["sha256"] = fingerprint(encoder.parameters())

    def job(task: str, rows: data.TaskData, contestant: Contestant, seed: int) -> Job:
        this = Run(
            task, contestant.name, seed, settings.budget, contestant.label, contestant.options, sizes, records[task]
        )
        texts = spread(longer_half(rows.train), settings.calibration)

        def build() -> PooledClassifier:
            asked = [collate([make(texts[i], torch.Generator())]) for i in range(len(texts))]
            fitted = [{name: x for name, x in each.items() if name != "labels"} for each in asked]
            return PooledClassifier(encoder, int(rows.classes or 1), contestant, settings.length, fitted)

        def start(at: Path, on_step: OnStep | None) -> dict[str, Any]:
            return train(
                this, at, build, rows.train, rows.validation, make,  # type: ignore[arg-type]
                collate=collate, metrics=table1.METRICS.get(task, scores.accuracy), on_step=on_step,
                lengths=lengths_of(rows.train),
            )  # fmt: skip

        return Job(this, start)

    results = run_all([job(task, rows, *entry) for task, rows in by_task.items() for entry in entries], folder, watcher)
    note = "Same encoder, texts, order and budget for all; ± is the standard deviation over seeds."
    return {
        "experiment": "table1_encoder",
        "title": "GLUE with a pretrained encoder",
        "settings": asdict(settings),
        "data": list(records.values()),
        "runs": results,
        "tables": [scores.table(results, "Score [%]", note)],
        "verdicts": [verdict.as_data() for verdict in verdicts(results)],
    }


def load(task: str, settings: Settings, source: str | None) -> data.TaskData:
    """Validation texts of like length together, so that few tokens of a batch are padding."""
    rows = data.load(f"glue/{task}", source=source)
    chosen = spread(rows.validation, settings.validation_rows)
    order = sorted(range(len(chosen)), key=lengths_of(chosen).__getitem__)
    return replace(rows, validation=Selection(chosen, order))


def lengths_of(rows: data.Rows) -> list[int]:
    """In letters: they tell who is as long as whom, and need no tokenizer."""
    return [len(rows[i]["text"]) + len(rows[i]["pair"] or "") for i in range(len(rows))]


def longer_half(rows: data.Rows) -> Selection:
    """In the order of the rows. What far attention has to be like is seen in texts that reach beyond a block."""
    lengths = lengths_of(rows)
    median = sorted(lengths)[len(lengths) // 2]
    return Selection(rows, [i for i, length in enumerate(lengths) if length >= median])


def tokenized(tokenizer: Any, length: int) -> Any:
    """A text, or a text and its pair, in the encoder's own tokens; the longer of the two is cut first."""

    def make(row: Row, _: torch.Generator) -> Row:
        texts = [row["text"]] if row["pair"] is None else [row["text"], row["pair"]]
        ids = tokenizer(*texts, truncation=True, max_length=length)["input_ids"]
        return {"input_ids": torch.tensor(ids), "labels": row["label"]}

    return make


def planned(settings: Settings, model: str) -> list[Planned]:
    """The models of a run, for a check."""
    config = shape_of(model)

    def of(task: str, contestant: Contestant) -> Planned:
        classes = table1.CLASSES.get(task, 2)

        def samples(count: int) -> dict[str, Tensor]:
            labels = torch.zeros(count, dtype=torch.int64)
            return {"input_ids": tokens(config.vocab_size, settings.length, count), "labels": labels}

        build = partial(invented, config, classes, contestant, settings.length)
        return Planned(task, contestant.label, settings.budget, config.num_hidden_layers, build, samples)

    return [of(task, each) for task in settings.tasks for each in each_once(settings.contestants)]


def verdicts(results: Sequence[dict[str, Any]]) -> list[Verdict]:
    tasks = dict.fromkeys(r["task"] for r in results)
    return [each for task in tasks for each in against_softmax(results, task, f"scores on {task}", scores.POINT)]
