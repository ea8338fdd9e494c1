"""`python -m lln_lab.pages.measured docs` writes docs/measured.md from the training results in docs/results."""

import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lln_lab.experiments.figure import name_of

NAMES = (
    "fig8",
    "fig8b",
    "table1",
    "table1_all",
    "table3",
    "fig10",
    "fig10b",
    "lra",
    "lra_others",
    "lra_image",
    "lra_pairs",
    "length",
    "sensitivity",
    "gaussian",
    "causal_lm",
)
# Results of one experiment that would have one heading, told apart.
SUBTITLES = {
    "lra": "five attentions",
    "lra_others": "the other members",
    "lra_image": "Image again, longer",
    "lra_pairs": "Retrieval and Pathfinder",
    "fig8b": "the loss scale of float16",
    "table1_all": "four tasks, fourteen methods",
}
HEAD = """<!-- Made from the JSON in docs/results by `python -m lln_lab.pages.measured docs`; do not edit. -->
# Training, measured

All of this ran at CPU size. It compares attentions under equal conditions. The paper's models are larger by orders of
magnitude in weights, data and steps, and these results say nothing about them. A claim gets a verdict only if softmax itself
has learned the task and there are three seeds; otherwise it is inconclusive ([why](experiments.md#what-a-verdict-needs)). Each
section starts with the command that produced it.
"""


def page(folder: Path) -> str:
    parts = [HEAD]
    for name in NAMES:
        path = folder / f"{name}.json"
        if path.exists():
            parts.append(section(name, json.loads(path.read_text()), (folder / f"{name}.svg").exists()))
    return "\n".join(parts)


def section(name: str, found: dict[str, Any], picture: bool) -> str:
    subtitle = f": {SUBTITLES[name]}" if name in SUBTITLES else ""
    lines = [f"## {found['title']}{subtitle}", ""]
    lines += ["```", found["provenance"]["command"], "```", "", *described(found), ""]
    for table in found["tables"]:
        lines += [*markdown(table), ""]
        if table.get("note"):
            lines += [table["note"], ""]
        if table.get("paper"):
            lines += [*markdown(table["paper"]), ""]
    lines += judged(found["verdicts"])
    if picture:
        lines += [f"![{found['title']}](results/{name}.svg)", ""]
    lines.append(f"All numbers: [{name}.json](results/{name}.json).")
    return reworded("\n".join(lines)) + "\n"


def judged(verdicts: list[dict[str, Any]]) -> list[str]:
    """Verdicts as a list; claims that lack the same thing for a verdict stand together below it."""
    lines, open_claims = list[str](), dict[str, list[str]]()
    for verdict in verdicts:
        numbers, _, missing = verdict["numbers"].partition("; no verdict because ")
        if missing:
            open_claims.setdefault(missing, []).append(f"- {verdict['claim']}: {numbers}")
        else:
            lines.append(f"- **{verdict['outcome']}**: {verdict['claim']}: {numbers}")
    lines += [""] if lines else []
    for missing, claims in open_claims.items():
        lines += [f"**Inconclusive**, because {missing}:", "", *claims, ""]
    return lines


def described(found: dict[str, Any]) -> list[str]:
    """The size, the budget, the data and the seeds, in words."""
    runs = found["runs"]
    size = [
        f"{key.replace('_', ' ')} {grouped((r['task'], r['model'][key]) for r in runs)}" for key in runs[0]["model"]
    ]
    data = found["data"] if isinstance(found["data"], list) else [found["data"]]
    sets = [f"{d['name']} ({d['source']}, {amounts(d, found['settings'])})" for d in data]
    labels = dict.fromkeys(r["label"] for r in runs)
    seeds = grouped((label, len({r["seed"] for r in runs if r["label"] == label})) for label in labels)
    budget = grouped((r["task"], steps(r["budget"])) for r in runs)
    return [
        f"Model: {', '.join(size)}. Budget: {budget}. Data: {'; '.join(sets)}. Seeds: {seeds}. Parameters: "
        f"{parameters(runs)}."
    ]


def amounts(record: dict[str, Any], settings: dict[str, Any]) -> str:
    """How much was trained and tested on: tokens of a corpus, else rows."""
    if "tokens" in record:
        trained, tested, what = record["tokens"]["train"], record["tokens"]["validation"], "tokens"
    else:
        limit = int(settings["validation_rows"])
        trained, tested, what = record["rows"]["train"], min(record["rows"]["validation"], limit), "rows"
    return f"{trained:,} {what} to train on, {tested:,} to test on"


def parameters(runs: list[dict[str, Any]]) -> str:
    """Of each task the usual number, and who is further from it than 1 %."""
    told = {}
    for task in dict.fromkeys(r["task"] for r in runs):
        counts = {r["label"]: r["parameters"] for r in runs if r["task"] == task}
        usual = statistics.median_low(counts.values())
        others = [
            f"{label} {count / usual - 1:+.0%}" for label, count in counts.items() if abs(count / usual - 1) > 0.01
        ]
        told[task] = f"{usual:,}" + (f" ({', '.join(others)})" if others else "")
    return grouped(told.items())


def steps(budget: dict[str, Any]) -> str:
    return f"{budget['steps']} steps of {budget['batch']}, learning rate {budget['learning_rate']}"


def grouped(pairs: Iterable[tuple[str, Any]]) -> str:
    """(name, value) in words: the value alone where all share it; else every value with the names that have it."""
    names: dict[str, dict[str, None]] = {}  # ordered sets
    for name, value in pairs:
        names.setdefault(str(value), {})[name] = None
    if len(names) == 1:
        return next(iter(names))
    return " and ".join(f"{value} ({', '.join(sharing)})" for value, sharing in names.items())


# Words of results written by earlier versions.
REWORDED = {
    "seconds a step": "seconds per step",
    "Seconds a step": "Seconds per step",
    "nats a masked": "nats per masked",
}


def reworded(text: str) -> str:
    for old, new in REWORDED.items():
        text = text.replace(old, new)
    return text


def markdown(table: dict[str, Any]) -> list[str]:
    """The table with attentions under their names and numbers to the right."""
    shown = [[name_of(str(first)), *map(cell, rest)] for first, *rest in table["rows"]]
    head = [f"**{table['title']}**", "", "| " + " | ".join(table["columns"]) + " |"]
    return [
        *head,
        "| --- |" + " ---: |" * (len(table["columns"]) - 1),
        *("| " + " | ".join(row) + " |" for row in shown),
    ]


def cell(value: Any) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    (docs / "measured.md").write_text(page(docs / "results"))
