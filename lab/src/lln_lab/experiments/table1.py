"""Table 1: GLUE after pre-training, for softmax, LLN and the other attentions.

Every method is pre-trained (Figure 8) and then fine-tuned on each task; seed s of a task starts from seed s of the
pre-training, so that the spread is over both.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from lln_lab import data
from lln_lab.data.files import sha256
from lln_lab.data.task import spread
from lln_lab.experiments import fig8, scores
from lln_lab.experiments.budgets import budget_of
from lln_lab.experiments.check import FEW_TOKENS, Planned, tokens
from lln_lab.experiments.contestants import Contestant, each_once, lineup, once
from lln_lab.experiments.evidence import most_frequent
from lln_lab.experiments.grid import Job, Watcher, data_record, run_all
from lln_lab.experiments.masking import PADDING, read_tokenizer
from lln_lab.experiments.models.roberta import SequenceClassifier, configuration
from lln_lab.experiments.tasks import padded, text_and_label
from lln_lab.experiments.training import Budget, Run, train
from lln_lab.experiments.training.watch import OnStep
from lln_lab.experiments.verdict import Verdict

METRICS = {"cola": scores.matthews, "stsb": scores.pearson}


@dataclass(frozen=True)
class Settings:
    pretraining: fig8.Settings
    budget: Budget
    tasks: tuple[str, ...] = ("sst2", "qnli", "mnli", "qqp")
    by_task: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the budget, where a task has its own
    contestants: tuple[str, ...] = ("softmax", "lln", "lln_diag")
    seeds: int = 1
    length: int = 128
    validation_rows: int = 1000
    source: str = ""


PAPER = {
    "title": "Table 1 of the paper: accuracy [%]",
    "columns": ["method", "MNLI", "QNLI", "QQP", "SST-2", "average"],
    "rows": [
        ["softmax", 80.3, 87.2, 89.9, 90.6, 87.0],
        ["reformer", 35.4, None, 63.2, 50.9, 49.8],
        ["performer", 58.8, 63.4, 79.1, 81.4, 70.6],
        ["elu", 74.8, 82.5, 86.9, 87.2, 82.8],
        ["longformer", 77.2, None, 85.5, 88.6, 83.7],
        ["transformer_ls", 77.0, 84.8, 86.8, 90.2, 84.7],
        ["tnn", 76.72, 85.06, 88.3, 90.6, 85.17],
        ["transnormer_t2", 77.28, 85.39, 88.56, 90.71, 85.48],
        ["cosformer", 76.7, None, 89.2, 91.0, 85.6],
        ["transnormer_t1", 79.06, 87.0, 88.61, 91.17, 86.46],
        ["flash", 79.45, 87.1, 88.83, 90.71, 86.52],
        ["nystromformer", 80.9, 88.7, 86.3, 91.4, 86.8],
        ["lln", 77.0, 85.1, 88.9, 90.6, 85.4],
        ["lln_diag", 80.0, 86.5, 89.7, 91.6, 86.9],
    ],
}
METHODS = tuple(str(row[0]) for row in PAPER["rows"])  # all fourteen

PRESETS = {
    "cpu": Settings(
        pretraining=fig8.PRESETS["cpu"],
        budget=Budget(steps=800, batch=16, learning_rate=5e-4, warmup=80, log_every=50, save_every=200),
        source="after the pre-training of --preset cpu; eight hundred steps",
    ),
    "paper": Settings(
        pretraining=fig8.PRESETS["paper"],
        budget=Budget(
            steps=123_873, batch=32, learning_rate=1e-5, warmup=7_432, schedule="polynomial", weight_decay=0.1,
            adam_beta2=0.98, adam_epsilon=1e-6, clip=0.0, log_every=100, evaluate_every=1_000, save_every=1_000,
            precision="float16", loss_scale=4.0, loss_scale_window=128,
        ),
        by_task={
            "qnli": {"steps": 33_112, "warmup": 1_986},
            "qqp": {"steps": 113_272, "warmup": 28_318},
            "sst2": {"steps": 20_935, "warmup": 1_256},
            "rte": {"steps": 2_036, "warmup": 122, "batch": 16, "learning_rate": 2e-5},
            "mrpc": {"steps": 2_296, "warmup": 137, "batch": 16},
            "cola": {"steps": 5_336, "warmup": 320, "batch": 16},
            "stsb": {"steps": 3_598, "warmup": 214, "batch": 16, "learning_rate": 2e-5},
            "wnli": {"steps": 2_036, "warmup": 122, "batch": 16, "learning_rate": 2e-5},
        },
        contestants=METHODS,
        seeds=5,
        length=512,
        validation_rows=50_000,
        source="the paper: RoBERTa-base, fine-tuned on GLUE; the rest from fairseq's recipe, task by task: docs/presets.md",
    ),
}  # fmt: skip


def run(
    settings: Settings,
    folder: Path,
    *,
    source: str | None = None,
    corpus: str | None = None,
    pretrained: Path | None = None,
    tokenizer: Path | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Pre-train what is not there yet, fine-tune, and what comes of it.

    source      where the GLUE tasks are; corpus: where the text for pre-training is.
    pretrained  the folder of an earlier `lln reproduce fig8 --keep-models`; else folder/pretraining.
    tokenizer   as fig8 has it: a folder with the files of a byte-level BPE; None: one trained on the corpus.
    """
    once("task", settings.tasks)
    entries = lineup(settings.contestants, settings.seeds)
    by_task = {task: load(task, settings, source) for task in settings.tasks}  # before hours of pre-training
    before = pretrained or folder / "pretraining"
    first = fig8.with_contestants(settings.pretraining, settings.contestants, settings.seeds)
    fig8.run(first, before, source=corpus, tokenizer=tokenizer, watcher=watcher, keep_models=True)
    bpe = read_tokenizer(before / "tokenizer")
    make, size = text_and_label(bpe, settings.length), first.size

    records = {task: {**data_record(rows), "guessing": guess(task, rows)} for task, rows in by_task.items()}

    def job(task: str, rows: data.TaskData, contestant: Contestant, seed: int) -> Job:
        origin = Run("mlm", contestant.name, seed, first.budget, options=contestant.options).name
        weights = before / origin / "model" / "model.safetensors"
        record = {**records[task], "pretraining": origin, "pretrained_sha256": sha256(weights)}
        described = Run(
            task,
            contestant.name,
            seed,
            budget_of(settings, task),
            contestant.label,
            contestant.options,
            asdict(size),
            record,
        )

        def build() -> SequenceClassifier:
            config = configuration(size, bpe.get_vocab_size(), num_labels=int(rows.classes or 1))
            model = SequenceClassifier(config, contestant.name, contestant.options)
            start_from(model, weights)
            return model

        def start(at: Path, on_step: OnStep | None) -> dict[str, Any]:
            return train(
                described, at, build, rows.train, rows.validation, make,  # type: ignore[arg-type]
                collate=padded(PADDING), metrics=METRICS.get(task, scores.accuracy), on_step=on_step,
            )  # fmt: skip

        return Job(described, start)

    jobs = [job(task, rows, *entry) for task, rows in by_task.items() for entry in entries]
    results = run_all(jobs, folder, watcher)
    note = "Same pre-training, data order and budget for all; ± is the standard deviation over seeds."
    found = {
        "experiment": "table1",
        "title": "GLUE after pre-training (Table 1)",
        "settings": asdict(settings),
        "data": list(records.values()),
        "runs": results,
        "tables": [{**scores.table(results, "Score [%]", note), "paper": PAPER}],
    }
    return {**found, "verdicts": [verdict.as_data() for verdict in verdicts(results)]}


CLASSES = {"mnli": 3, "stsb": 1}  # two of all others


def planned(settings: Settings) -> list[Planned]:
    """The models of a run, for a check: those of the pre-training, and each with the tasks' classifiers."""
    before = fig8.with_contestants(settings.pretraining, settings.contestants, 1)

    def of(task: str, contestant: Contestant) -> Planned:
        classes = CLASSES.get(task, 2)

        def build(layers: int) -> SequenceClassifier:
            config = configuration(replace(before.size, layers=layers), before.vocabulary, num_labels=classes)
            return SequenceClassifier(config, contestant.name, contestant.options)

        def samples(count: int, length: int = min(settings.length, before.size.length)) -> dict[str, Any]:
            ids = tokens(before.vocabulary, length, count)
            return {"input_ids": ids, "labels": torch.zeros(count, dtype=torch.int64)}

        def few(count: int) -> dict[str, Any]:
            return samples(count, FEW_TOKENS)

        budget = budget_of(settings, task)
        return Planned(task, contestant.label, budget, before.size.layers, build, samples, stepped=few)

    contestants = each_once(settings.contestants)
    return [*fig8.planned(before), *(of(task, each) for task in settings.tasks for each in contestants)]


def load(task: str, settings: Settings, source: str | None) -> data.TaskData:
    rows = data.load(f"glue/{task}", source=source)
    return replace(rows, validation=spread(rows.validation, settings.validation_rows))


def guess(task: str, rows: data.TaskData) -> float:
    """The score of who does not look at the text: correlations are nothing then."""
    return 0.0 if task in METRICS else most_frequent(rows.validation)


def start_from(model: SequenceClassifier, weights: Path) -> None:
    """The encoder's weights from pre-training; the classifier stays as it was drawn."""
    kept = {name: x for name, x in load_file(weights).items() if name.startswith("roberta.")}
    left = model.load_state_dict(kept, strict=False)
    wrong = [name for name in left.missing_keys if not name.startswith("classifier.")] + left.unexpected_keys
    if wrong:
        raise ValueError(f"{weights} does not fit the model: {', '.join(wrong[:5])}")


def verdicts(results: Sequence[dict[str, Any]]) -> list[Verdict]:
    found = []
    for task in dict.fromkeys(r["task"] for r in results):
        found += scores.against(results, task, f"LLN+Diag is on a par with softmax on {task} (Table 1)")
        found += scores.ahead_of_linear(results, task)
    return found
