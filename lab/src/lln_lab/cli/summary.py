"""A group of commands whose help has one line for each, in a given order."""

from typing import Any

import typer.core


def with_summary(summary: dict[str, str]) -> type[typer.core.TyperGroup]:
    """A class for `typer.Typer(cls=...)`: commands in the order of `summary`, with its lines; any others come last."""

    class Summarised(typer.core.TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            for name, command in self.commands.items():
                command.short_help = summary.get(name, command.short_help)

        def list_commands(self, ctx: Any) -> list[str]:
            return [name for name in summary if name in self.commands] + [n for n in self.commands if n not in summary]

    return Summarised
