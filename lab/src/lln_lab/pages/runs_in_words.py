"""What was run, in words: a line to read, and a list to repeat it by."""

import re
import statistics
from collections.abc import Iterable
from typing import Any

from lln_lab.names import name_of, task_of


def in_short(found: dict[str, Any]) -> str:
    """Seeds, steps and data, where a line can say them."""
    runs = found["runs"]
    budgets = {f"{r['budget']['steps']:,} steps of {r['budget']['batch']}" for r in runs}
    steps = budgets.pop() if len(budgets) == 1 else f"{_span(r['budget']['steps'] for r in runs)} steps"
    seeds = _span(len({r["seed"] for r in runs if r["label"] == label}) for label in {r["label"] for r in runs})
    plural = "seed" if seeds == "1" else "seeds"
    model = runs[0]["model"]
    return f"{model['layers']} layers of width {model['width']}, {steps}, {seeds} {plural}."


def described(found: dict[str, Any]) -> list[str]:
    """The size, the budget, the data, the seeds and the weights, as a list."""
    runs = found["runs"]
    size = [
        f"{key.replace('_', ' ')} {grouped((r['task'], r['model'][key]) for r in runs)}" for key in runs[0]["model"]
    ]
    labels = dict.fromkeys(r["label"] for r in runs)
    seeds = grouped((name_of(label), len({r["seed"] for r in runs if r["label"] == label})) for label in labels)
    return [
        f"- **Model**: {', '.join(size)}",
        f"- **Budget**: {grouped((r['task'], steps(r['budget'])) for r in runs)}",
        f"- **Data**: {'; '.join(sets(found))}",
        f"- **Seeds**: {seeds}",
        f"- **Weights**: {parameters(runs)}",
    ]


def sets(found: dict[str, Any]) -> list[str]:
    """Each data set with how much of it was used. Sets that differ in numbers only are one entry: 4 pairs in 64 to 4,096."""
    records = found["data"] if isinstance(found["data"], list) else [found["data"]]
    alike: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        used = amounts(record, found["settings"])
        key = (record["name"], re.sub(r"\d+", "#", record["source"]), used)
        alike.setdefault(key, []).append(record["source"])
    return [f"{name} ({ranged(sources)}; {used})" for (name, _, used), sources in alike.items()]


def ranged(sources: list[str]) -> str:
    """Texts with the same words: the first, its numbers as ranges where the others' differ."""
    numbers = iter(zip(*(map(int, re.findall(r"\d+", source)) for source in sources), strict=True))
    return re.sub(r"\d+", lambda _: _span(next(numbers)), sources[0])


def amounts(record: dict[str, Any], settings: dict[str, Any]) -> str:
    """How much was trained and tested on: tokens of a corpus, else rows."""
    if "tokens" in record:
        trained, tested, what = record["tokens"]["train"], record["tokens"]["validation"], "tokens"
    else:
        limit = int(settings["validation_rows"])
        trained, tested, what = record["rows"]["train"], min(record["rows"]["validation"], limit), "rows"
    return f"{trained:,} {what} to train on, {tested:,} to test on"


def parameters(runs: list[dict[str, Any]]) -> str:
    """The usual number per task, and the attentions more than 1 % away from it."""
    told = {}
    for task in dict.fromkeys(r["task"] for r in runs):
        counts = {r["label"]: r["parameters"] for r in runs if r["task"] == task}
        usual = statistics.median_low(counts.values())
        others = [
            f"{name_of(label)} {count / usual - 1:+.0%}"
            for label, count in counts.items()
            if abs(count / usual - 1) > 0.01
        ]
        told[task] = f"{usual:,}" + (f" (but {', '.join(others)})" if others else "")
    return grouped(told.items())


def steps(budget: dict[str, Any]) -> str:
    return f"{budget['steps']:,} steps of {budget['batch']}, learning rate {budget['learning_rate']}"


def grouped(pairs: Iterable[tuple[str, Any]]) -> str:
    """(name, value) in words: the value alone where all share it; else every value with the names that have it."""
    names: dict[str, dict[str, None]] = {}  # ordered sets
    for name, value in pairs:
        names.setdefault(str(value), {})[name] = None
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{value} ({named(sharing)})" for value, sharing in names.items())


def named(tasks: Iterable[str]) -> str:
    """Tasks by name; the lengths of one task, as in recall/64, as a range."""
    lengths: dict[str, list[int]] = {}
    for task in tasks:
        base, _, length = task.partition("/")
        lengths.setdefault(base, []).extend([int(length)] if length.isdigit() else [])
    ranges: dict[str, list[str]] = {}
    for base, of in lengths.items():
        ranges.setdefault(_span(of) if of else "", []).append(task_of(base))
    return ", ".join(f"{' and '.join(bases)} at {span}" if span else ", ".join(bases) for span, bases in ranges.items())


def _span(values: Iterable[int]) -> str:
    low, *_, high = (*(ordered := sorted(values)), ordered[-1])
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
