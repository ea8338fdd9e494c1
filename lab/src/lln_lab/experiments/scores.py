"""Scores of predictions, and tables of them: methods down, tasks across, mean and spread over seeds."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy
from sklearn.metrics import accuracy_score, matthews_corrcoef

from lln_lab.experiments import pairs
from lln_lab.experiments.evidence import METRICS
from lln_lab.experiments.grid import mean_and_spread
from lln_lab.experiments.verdict import Verdict

POINT = 1.0  # a difference below one point of a hundred is taken for none


def accuracy(predicted: Any) -> dict[str, float]:
    return {"accuracy": float(accuracy_score(predicted.label_ids, predicted.predictions.argmax(-1)))}


def matthews(predicted: Any) -> dict[str, float]:
    return {"matthews": float(matthews_corrcoef(predicted.label_ids, predicted.predictions.argmax(-1)))}


def pearson(predicted: Any) -> dict[str, float]:
    return {"pearson": float(numpy.corrcoef(predicted.label_ids, predicted.predictions[:, 0])[0, 1])}


def percent(values: Sequence[float]) -> str:
    """'81.3 ± 0.4', or '81.3' for one seed."""
    mean, spread = mean_and_spread([100 * value for value in values])
    return f"{mean:.1f} ± {spread:.1f}" if len(values) > 1 else f"{mean:.1f}"


def score_of(result: dict[str, Any]) -> float:
    """The one score of a classification run."""
    return float(next(value for name, value in result["evaluation"].items() if name in METRICS))


def points(result: dict[str, Any]) -> float:
    """The score in points of a hundred."""
    return 100 * score_of(result)


def table(
    results: Sequence[dict[str, Any]],
    title: str,
    note: str,
    cell: Callable[[list[dict[str, Any]]], Any] | None = None,
) -> dict[str, Any]:
    """A row for each method and a column for each task; the best mean score first."""
    tasks = list(dict.fromkeys(result["task"] for result in results))
    labels = list(dict.fromkeys(result["label"] for result in results))
    cell = cell or (lambda runs: percent([score_of(each) for each in runs]))
    labels.sort(key=lambda label: -float(numpy.mean([score_of(r) for r in results if r["label"] == label])))
    rows: list[list[Any]] = []
    for label in labels:
        by_task = [[r for r in results if r["label"] == label and r["task"] == task] for task in tasks]
        rows.append([label, *(cell(runs) if runs else None for runs in by_task)])
    return {"title": title, "note": note, "columns": ["attention", *tasks], "rows": rows}


def minutes(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The processor time of whole runs."""

    def of(runs: list[dict[str, Any]]) -> float | None:
        times = [run["cpu_seconds_per_step"] * run["steps"] for run in runs if run.get("cpu_seconds_per_step")]
        return round(min(times) / 60, 1) if times else None

    note = "The median step times the steps; the fastest seed."
    return table(results, "Processor minutes of a run", note, of)


def label_of(results: Sequence[dict[str, Any]], attention: str) -> str:
    """The attention as it is labelled among the results: with its options where every run of it has some."""
    labels = [r["label"] for r in results if r["attention"] == attention]
    return attention if attention in labels or not labels else str(labels[0])


def against(
    results: Sequence[dict[str, Any]],
    task: str,
    claim: str,
    other: str = "softmax",
    ahead: bool = False,
    label: str = "lln_diag",
) -> list[Verdict]:
    """LLN+Diag against another method on a task: no worse by more than a point, or (`ahead`) better."""
    other = label_of(results, other)
    own = [r for r in results if r["task"] == task]
    runs = {name: [score_of(r) for r in own if r["label"] == name] for name in (label, other)}
    if not all(runs.values()):
        return []
    numbers = f"{percent(runs[label])} against {percent(runs[other])} of {other}"
    return pairs.on_a_par(own, task, label, other, points, claim, numbers, ".1f", POINT, ahead)


def ahead_of_linear(results: Sequence[dict[str, Any]], task: str) -> list[Verdict]:
    """LLN+Diag against the other linear members on a task, in points."""
    own = [r for r in results if r["task"] == task]
    claim = f"LLN+Diag is ahead of the other linear attentions on {task}"
    return pairs.ahead_of_linear(own, task, points, claim)
