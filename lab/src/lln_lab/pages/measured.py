"""`python -m lln_lab.pages.measured docs` writes docs/measured.md from the training results in docs/results."""

import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NAMES = (
    "fig8",
    "table1",
    "table3",
    "fig10",
    "fig10b",
    "lra",
    "lra_others",
    "lra_image",
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
}
HEAD = """# The training experiments, measured

Made from the JSON in `docs/results` by `python -m lln_lab.pages.measured docs`; do not edit it. All at CPU size: what is
compared are attentions under equal conditions, not models with the paper's, which are larger by orders of magnitude in
weights, data and steps. What each command does: [commands](experiments.md).
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
    lines += [f"`{found['provenance']['command']}` ([{name}.json](results/{name}.json))", ""]
    lines += [*described(found), ""]
    for table in found["tables"]:
        lines += [*markdown(table), ""]
        if table.get("note"):
            lines += [table["note"], ""]
        if table.get("paper"):
            lines += [*markdown(table["paper"]), ""]
    for verdict in found["verdicts"]:
        lines.append(f"- **{verdict['outcome']}**: {verdict['claim']}: {verdict['numbers']}")
    if picture:
        lines += ["", f"![{found['title']}](results/{name}.svg)"]
    return reworded("\n".join(lines)) + "\n"


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
    shown = [["–" if cell is None else str(cell) for cell in row] for row in table["rows"]]
    head = [f"**{table['title']}**", "", "| " + " | ".join(table["columns"]) + " |"]
    return [*head, "|" + " --- |" * len(table["columns"]), *("| " + " | ".join(row) + " |" for row in shown)]


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    (docs / "measured.md").write_text(page(docs / "results"))
