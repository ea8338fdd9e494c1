"""Verdicts on the terminal. Claims that lack the same thing for a verdict stand together, below what they lack."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from lln_lab.experiments.verdict import by_what_is_missing
from lln_lab.names import in_sentence

COLOURS = {"holds": "green", "does not hold": "red"}


def say(verdicts: Sequence[dict[str, Any]], console: Console) -> None:
    stand, lacking = by_what_is_missing(verdicts)
    for one in stand:
        colour = COLOURS.get(one["outcome"], "yellow")
        console.print(f"[bold {colour}]{one['outcome']}[/]: {_in_sentence(one['claim'])}", highlight=False)
        console.print(f"  {_in_sentence(one['numbers'])}", highlight=False)
    for missing, claims in lacking.items():
        console.print(f"[bold yellow]inconclusive[/], because {_in_sentence(missing)}:", highlight=False)
        for one in claims:
            console.print(f"- {_in_sentence(one['claim'])}", highlight=False)
            console.print(f"  {_in_sentence(one['numbers'])}", highlight=False)


def _in_sentence(text: str) -> str:
    return escape(in_sentence(text))
