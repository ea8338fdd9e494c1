"""A result's table as Markdown that can be read: attentions and tasks by name, one number of decimals per column, no column
that says the same in every row."""

import re
from collections.abc import Sequence
from typing import Any

from lln_lab.names import in_sentence, name_of, task_of

# Words of results written by earlier versions.
REWORDED = {
    "seconds a step": "seconds per step",
    "Seconds a step": "Seconds per step",
    "nats a masked": "nats per masked",
    "looks at a layer": "measurements of a layer",
    "Each model goes on from the length before": "Each model continues from the previous length",
}
# Said once in the description of the runs when it is the same for all.
SHARED = ("parameters", "seeds", "seed", "attention", "spread")
# Measured while other jobs ran, so that it compares nothing: the tables of time and memory are where to look.
DROPPED = ("seconds per step", "seconds a step")
# Of the widest tables the columns that matter; the JSON has the others.
SHOWN = {
    "Queries and keys while a model trains": {
        "step": "step",
        "layer": "layer",
        "q ks": "KS, q",
        "k ks": "KS, k",
        "q mean_share": "mean's share, q",
        "k mean_share": "mean's share, k",
        "softmax entropy": "entropy, bits",
        "cost, table": "cost, table",
    }
}


def markdown(table: dict[str, Any]) -> list[str]:
    """The table under its title, numbers to the right."""
    columns, rows = chosen(table)
    shown = [[first, *rest] for first, *rest in zip(*map(cells, zip(*rows, strict=True)), strict=True)] if rows else []
    return [
        f"**{readable(table['title'])}**",
        "",
        "| " + " | ".join(task_of(readable(column)) for column in columns) + " |",
        "| --- |" + " ---: |" * (len(columns) - 1),
        *("| " + " | ".join(row) + " |" for row in shown),
    ]


def chosen(table: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """The columns worth a reader's time, and the rows cut to them."""
    columns, rows = table["columns"], table["rows"]
    wanted = SHOWN.get(table["title"])
    if wanted:
        kept = [columns.index(column) for column in wanted]
        return list(wanted.values()), [[row[at] for at in kept] for row in rows]
    kept = [0, *(at for at in range(1, len(columns)) if worth_a_column(columns[at], [row[at] for row in rows]))]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]


def worth_a_column(name: str, values: list[Any]) -> bool:
    if name in DROPPED or all(value is None for value in values):
        return False
    return name not in SHARED or len({str(value) for value in values}) > 1


def cells(column: Sequence[Any]) -> list[str]:
    """A column's values, with the decimals of the most exact one."""
    decimals = max((len(str(x).partition(".")[2]) for x in column if isinstance(x, float)), default=0)
    return [cell(value, decimals) for value in column]


def cell(value: Any, decimals: int) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return minus(f"{value:,.{decimals}f}")
    return f"{value:,}" if isinstance(value, int) else minus(name_of(str(value)))


# Phrases of verdicts, shortened for a list: what stands for softmax's number, and for the difference between equal seeds.
NUMBER = r"((?:2\^)?-?[\d.]+(?: ± [\d.]+)?(?: %)?)"
SHORTENED = {
    rf"{NUMBER} against {NUMBER} of softmax": r"\1, softmax \2",
    rf": {NUMBER} and {NUMBER} of softmax": r" \1, softmax \2",
    rf": {NUMBER} of (\w+) and {NUMBER} of softmax": r" \1, softmax \3",
    r"gain seed by seed": "paired gain",
    r"(\d) against (\S+) of (\w+)": r"\1, \3 \2",
}


def with_names(text: str) -> str:
    """A sentence of a verdict, with attentions and tasks by the names a reader knows."""
    for long, short in SHORTENED.items():
        text = re.sub(long, short, text)
    return minus(readable(in_sentence(text)))


def minus(text: str) -> str:
    """A hyphen before a number, and not behind one, is a minus sign; powers are raised."""
    text = re.sub(r"(?<![\w.-])-(?=\d)|(?<=\^)-(?=\d)", "−", text)
    return re.sub(r"\^(−?[\d.]*\d)", r"<sup>\1</sup>", text)


def readable(text: str) -> str:
    for old, new in REWORDED.items():
        text = text.replace(old, new)
    return text
