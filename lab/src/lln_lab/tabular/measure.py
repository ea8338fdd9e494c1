"""TabPFN with softmax, converted in closed form, and distilled: accuracy on scikit-learn's sets, and a long table."""

import copy
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import torch
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from lln.conversion import convert
from lln_lab.tabular.distil import Plan as DistillationPlan
from lln_lab.tabular.distil import distil, drawn_tasks
from lln_lab.tabular.model import TabPFN, classify

SETS: tuple[str, ...] = ("iris", "wine", "breast_cancer", "digits")
MOST_ROWS = 1000  # of a set, training and test rows together: the model was trained on up to 1,024


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    sets: tuple[str, ...] = SETS
    splits: int = 3
    calibration_tasks: int = 8
    distillation: DistillationPlan = field(default_factory=DistillationPlan)
    long_rows: int = 100_000  # 0: no long table


def run(teacher: TabPFN, plan: Plan, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Accuracies in per cent: a list over splits for each set and model."""
    found = {"softmax": accuracies(teacher, plan)}
    on_progress(f"softmax: {average(found['softmax']):.1f}")
    student = copy.deepcopy(teacher)
    tasks = drawn_tasks(plan.distillation.rows, plan.distillation.seed + 1)
    convert(student, [next(tasks) for _ in range(plan.calibration_tasks)])
    found["converted"] = accuracies(student, plan)
    on_progress(f"converted in closed form: {average(found['converted']):.1f}")
    losses = {}
    if plan.distillation.seconds > 0:
        losses = distil(teacher, student, plan.distillation)
        found["distilled"] = accuracies(student, plan)
        on_progress(f"distilled: {average(found['distilled']):.1f}")
    return {
        "accuracy": found,
        "average": {name: average(by_set) for name, by_set in found.items()},
        "steps": {name: len(values) for name, values in losses.items()},
        "losses": {
            name: [_rounded(mean(values[:10])), _rounded(mean(values[-10:]))]
            for name, values in losses.items()
            if values
        },
        "long_table": long_table(student, plan.long_rows) if plan.long_rows else None,
    }


def average(by_set: dict[str, list[float]]) -> float:
    """Over sets, of the average over splits."""
    return mean(mean(values) for values in by_set.values())


def accuracies(model: TabPFN, plan: Plan) -> dict[str, list[float]]:
    """One half of the rows labels the other, split at random."""
    return {name: [_accuracy(model, *_split(name, seed)) for seed in range(plan.splits)] for name in plan.sets}


def long_table(model: TabPFN, rows: int, test_rows: int = 1000) -> dict[str, float]:
    """One pass over a drawn table of that many training rows: time, memory, and accuracy beside that of logistic regression."""
    x, y = datasets.make_classification(
        rows + test_rows, n_features=20, n_informative=8, n_classes=4, n_clusters_per_class=3, random_state=0
    )
    start, cpu = time.perf_counter(), time.process_time()
    accuracy = _accuracy(model, torch.tensor(x), torch.tensor(y), rows)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    linear = LogisticRegression(max_iter=1000).fit(x[:rows], y[:rows])
    return {
        "rows": rows,
        "test_rows": test_rows,
        "seconds": _rounded(seconds),
        "cpu_seconds": _rounded(cpu_seconds),
        "peak_gigabytes_of_the_process": _rounded(peak),
        "accuracy": accuracy,
        "logistic_regression": _rounded(100 * float(linear.score(x[rows:], y[rows:]))),
    }


def _split(name: str, seed: int) -> tuple[Tensor, Tensor, int]:
    given = getattr(datasets, f"load_{name}")()
    chosen = torch.randperm(len(given.target), generator=torch.Generator().manual_seed(seed))[:MOST_ROWS]
    return torch.tensor(given.data)[chosen], torch.tensor(given.target)[chosen], len(chosen) // 2


def _accuracy(model: TabPFN, x: Tensor, y: Tensor, training: int) -> float:
    return _rounded(100 * float((classify(model, x, y[:training]) == y[training:]).double().mean()))


def _rounded(x: float) -> float:
    return float(f"{x:.4g}")
