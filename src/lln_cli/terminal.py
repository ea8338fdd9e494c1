"""Terminal helpers: a progress line, and options that are lists of whole numbers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def telling(console: Console, first: str = "measuring") -> Iterator[Callable[[str], None]]:
    """A line with a clock, and the function that changes its words."""
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task(first, total=None)
        yield lambda what: progress.update(task, description=what)
        progress.update(task, total=1, completed=1)


def whole_numbers(text: str, option: str = "--lengths") -> tuple[int, ...]:
    """1024,4096 as (1024, 4096)."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise typer.BadParameter(f"{option} takes whole numbers separated by commas, got {part!r}")
    return tuple(map(int, parts))
