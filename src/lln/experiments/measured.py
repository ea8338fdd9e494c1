"""`python -m lln.experiments.measured docs` writes docs/measured.md from the training results in docs/results."""

import json
import sys
from pathlib import Path
from typing import Any

NAMES = ("fig8", "table1", "table1_qnli", "table3", "fig10", "lra", "length", "sensitivity", "gaussian")
HEAD = """# The training experiments, measured

Made from the JSON in `docs/results` by `python -m lln.experiments.measured docs`; do not edit it. All at CPU size: what is
compared are attentions under equal conditions, not models with the paper's, which are larger by orders of magnitude in
weights, data and steps. What each command does: [commands](experiments.md).
"""


def page(folder: Path) -> str:
    parts = [HEAD]
    for name in NAMES:
        path = folder / f"{name}.json"
        if path.exists():
            parts.append(section(name, json.loads(path.read_text()), (folder / f"{name}.png").exists()))
    return "\n".join(parts)


def section(name: str, found: dict[str, Any], picture: bool) -> str:
    lines = [f"## {found['title']}", ""]
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
        lines += ["", f"![{found['title']}](results/{name}.png)"]
    return "\n".join(lines) + "\n"


def described(found: dict[str, Any]) -> list[str]:
    """The size, the budget and the data, in words."""
    run = found["runs"][0]
    size = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in run["model"].items())
    budget = run["budget"]
    data = found["data"] if isinstance(found["data"], list) else [found["data"]]
    sets = "; ".join(f"{d['name']} ({d['source']}, {d['rows']['train']:,} rows to train on)" for d in data)
    steps = f"{budget['steps']} steps of {budget['batch']}, learning rate {budget['learning_rate']}"
    seeds = len({r["seed"] for r in found["runs"]})
    return [f"Model: {size}. Budget: {steps}. Data: {sets}. {seeds} {'seed' if seeds == 1 else 'seeds'}."]


def markdown(table: dict[str, Any]) -> list[str]:
    shown = [["–" if cell is None else str(cell) for cell in row] for row in table["rows"]]
    head = [f"**{table['title']}**", "", "| " + " | ".join(table["columns"]) + " |"]
    return [*head, "|" + " --- |" * len(table["columns"]), *("| " + " | ".join(row) + " |" for row in shown)]


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    (docs / "measured.md").write_text(page(docs / "results"))
