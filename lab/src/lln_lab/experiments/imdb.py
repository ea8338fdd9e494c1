"""A pretrained encoder on long documents: film reviews, with softmax and converted in closed form, then fine-tuned alike.

The paper trains from scratch. Here a sentence encoder that others trained (a BERT, such as all-MiniLM-L6-v2) is converted on a
few training reviews, gets a linear classifier on the mean of its outputs, and is fine-tuned whole; softmax's own self is
fine-tuned beside it, on the same batches. Reviews are cut at `length` tokens; beyond the encoder's own positions they are
stretched, softmax's as well. Reviews of like length share a batch, so that little of it is padding.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.conversion.checkpoint import fingerprint
from lln.zoo.cost import saved_bytes
from lln_lab import data
from lln_lab.data.task import Selection, spread
from lln_lab.experiments import scores
from lln_lab.experiments.check import Planned, tokens
from lln_lab.experiments.contestants import Contestant, each_once, lineup
from lln_lab.experiments.converted import against_softmax
from lln_lab.experiments.evidence import most_frequent
from lln_lab.experiments.grid import Job, Watcher, data_record, run_all
from lln_lab.experiments.models.pretrained import (
    FITS,
    PooledClassifier,
    described,
    invented,
    read_encoder,
    refuse_unconvertible,
    shape_of,
)
from lln_lab.experiments.pairs import gain, gains
from lln_lab.experiments.tasks import Row, padded
from lln_lab.experiments.training import Budget, Run, train
from lln_lab.experiments.training.watch import OnStep
from lln_lab.experiments.verdict import Verdict

TASK = "imdb"
HALF_A_POINT = 0.5  # of a hundred: the margin of "on a par"
BYTES = 8  # of a token, at most, on average over a review: what is read of one


@dataclass(frozen=True)
class Settings:
    budget: Budget
    length: int = 512
    contestants: tuple[str, ...] = ("softmax", "lln_diag", "near_far")
    seeds: int = 1
    validation_rows: int = 5000
    calibration: int = 16  # training reviews that the conversion is fitted to
    source: str = ""


PRESETS = {
    "cpu": Settings(
        budget=Budget(
            steps=625, batch=8, learning_rate=5e-5, warmup=60, adam_beta2=0.999, log_every=25, save_every=125
        ),
        source="5,000 reviews, each read once",
    ),
    "paper": Settings(
        budget=Budget(
            steps=2_344, batch=32, learning_rate=5e-5, warmup=234, adam_beta2=0.999, log_every=50, save_every=500
        ),
        seeds=3,
        validation_rows=25_000,
        calibration=64,
        source="not in the paper: all 25,000 reviews three times, for a GPU",
    ),
}  # fmt: skip


def run(
    settings: Settings,
    folder: Path,
    *,
    model: str | None,
    source: str | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """All runs, and what they show. `model` is a folder, or a name on the hub."""
    entries = lineup(settings.contestants, settings.seeds, own_steps=True)
    for contestant, _ in entries:
        refuse_unconvertible(contestant)
    if model is None:
        raise ValueError(f"a pretrained encoder is needed: --model with {FITS}")
    tokenizer, encoder = read_encoder(model)
    rows = load(settings, source)
    make = tokenized(tokenizer, settings.length)
    collate = padded(int(tokenizer.pad_token_id or 0))
    record = {**data_record(rows), "guessing": most_frequent(rows.validation)}
    sizes = described(encoder.config, model, settings.length, settings.calibration)
    sizes["sha256"] = fingerprint(encoder.parameters())

    def batch_of(chosen: data.Rows) -> dict[str, Tensor]:
        return collate([make(chosen[i], torch.Generator()) for i in range(len(chosen))])

    lengths = lengths_of(rows.train)
    reviews = spread(rows.train, settings.calibration)
    calibration = [batch_of(Selection(reviews, [i])) for i in range(len(reviews))]

    def job(contestant: Contestant, seed: int) -> Job:
        budget = contestant.budget(settings.budget)
        this = Run(
            TASK, contestant.name, seed, budget, contestant.label, contestant.options, sizes, record,
            contestant.steps is not None,
        )  # fmt: skip

        def build() -> PooledClassifier:
            asked = [{name: x for name, x in each.items() if name != "labels"} for each in calibration]
            return PooledClassifier(encoder, int(rows.classes or 2), contestant, settings.length, asked)

        def start(at: Path, on_step: OnStep | None) -> dict[str, Any]:
            found = train(
                this, at, build, rows.train, rows.validation, make,  # type: ignore[arg-type]
                collate=collate, metrics=scores.accuracy, on_step=on_step, lengths=lengths,
            )  # fmt: skip
            first = batch_of(spread(rows.train, budget.batch))
            return {**found, "saved_bytes": saved_bytes(build().train(), first.pop("input_ids"), **first)}

        return Job(this, start)

    results = run_all([job(contestant, seed) for contestant, seed in entries], folder, watcher)
    return {
        "experiment": TASK,
        "title": f"A pretrained encoder on reviews of up to {settings.length:,} tokens",
        "settings": asdict(settings),
        "data": record,
        "runs": results,
        "tables": [table(results)],
        "verdicts": [verdict.as_data() for verdict in verdicts(results)],
    }


def load(settings: Settings, source: str | None) -> data.TaskData:
    """Validation reviews of like length together, so that few tokens of a batch are padding."""
    rows = data.load("lra/text", source=source, length=BYTES * settings.length)
    chosen = spread(rows.validation, settings.validation_rows)
    order = sorted(range(len(chosen)), key=lengths_of(chosen).__getitem__)
    return replace(rows, validation=Selection(chosen, order))


def lengths_of(reviews: data.Rows) -> list[int]:
    """In bytes, which tell who is as long as whom as well as tokens do, and need no tokenizer."""
    return [len(reviews[i]["input_ids"]) for i in range(len(reviews))]


def tokenized(tokenizer: Any, length: int) -> Any:
    """Bytes of a review -> the encoder's own tokens, cut at `length`."""

    def make(row: Row, _: torch.Generator) -> Row:
        text = bytes((row["input_ids"] - 1).tolist()).decode(errors="ignore")  # the last character may be cut in two
        ids = tokenizer(text, truncation=True, max_length=length)["input_ids"]
        return {"input_ids": torch.tensor(ids), "labels": row["label"]}

    return make


def planned(settings: Settings, model: str | None = None) -> list[Planned]:
    """The models of a run, for a check: of all-MiniLM-L6-v2's shape where no model is given."""
    config = shape_of(model)

    def of(contestant: Contestant) -> Planned:
        refuse_unconvertible(contestant)

        def samples(count: int) -> dict[str, Tensor]:
            return {
                "input_ids": tokens(config.vocab_size, settings.length, count),
                "labels": torch.arange(count) % 2,
            }

        build = partial(invented, config, 2, contestant, settings.length)
        return Planned(TASK, contestant.label, settings.budget, config.num_hidden_layers, build, samples)

    return [of(contestant) for contestant in each_once(settings.contestants)]


def table(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rows, labels = [], list(dict.fromkeys(r["label"] for r in results))
    softmax = [
        label for label in labels if label.startswith("softmax")
    ]  # with steps of its own, where it has no others
    other = "softmax" if "softmax" in softmax else softmax[0] if softmax else ""
    for label in labels:
        own = [r for r in results if r["label"] == label]
        gained = gains(results, label, other, scores.points)
        first = min(own, key=lambda r: r["seed"])
        step, read = first["cpu_seconds_per_step"], first.get("evaluation_cpu_seconds")
        rows.append([
            label, scores.percent([scores.score_of(r) for r in own]), len(own),
            gain(gained).told(".2f") if gained and label != other else None,
            round(step, 2) if step else None,
            round(step * first["steps"] / 60, 1) if step else None,
            round(read / 60, 1) if read else None,
            round(own[0]["saved_bytes"] / 2**20, 1),
        ])  # fmt: skip
    return {
        "title": "Accuracy, time and memory",
        "note": "Same reviews in the same order for all; ± is the standard deviation over seeds; to softmax: mean difference "
        "in points to the run with the same seed, and its 95 % interval; CPU time of the first seed, whose runs followed each "
        "other on one machine; megabytes kept for the backward pass of one step, counted.",
        "columns": [
            "attention",
            "accuracy [%]",
            "seeds",
            "to softmax",
            "CPU seconds a step",
            "CPU minutes of training",
            "CPU minutes of evaluation",
            "megabytes kept",
        ],
        "rows": rows,
    }


def verdicts(results: Sequence[dict[str, Any]]) -> list[Verdict]:
    return against_softmax(results, TASK, "classifies reviews", HALF_A_POINT)
