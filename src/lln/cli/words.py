"""Mistakes of whoever types a command end in words and an exit code, not in a traceback."""

import os
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

WRONG = 2  # exit code
TRACEBACK = "LLN_TRACEBACK"


class InWords(TyperGroup):
    """Wrong values, files that are not there and packages that are not installed; LLN_TRACEBACK=1 shows where."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, OSError, ImportError) as wrong:
            if os.environ.get(TRACEBACK):
                raise
            tell(wrong)
            raise typer.Exit(WRONG) from wrong


def tell(wrong: Exception) -> None:
    console = Console(stderr=True)
    console.print(
        f"[bold red]cannot run[/] {escape(str(wrong)) or type(wrong).__name__}", highlight=False, soft_wrap=True
    )
    if isinstance(wrong, ImportError):
        console.print("the commands need all extras: pip install 'lln-attention[all]'", highlight=False, markup=False)
    console.print(f"[dim]{TRACEBACK}=1 shows where[/]", highlight=False)
