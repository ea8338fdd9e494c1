"""`lln demo`: softmax, LLN and LLN+Diag side by side, on text that every Python has."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lln.experiments.demo import METHODS, TITLES, Settings, run
from lln.experiments.demo_report import plot, print_tables
from lln.results import write_result


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the plots and the JSON.")] = Path("runs/demo"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each method.")] = 150,
    longest: Annotated[int, typer.Option(min=256, help="Longest sequence to time.")] = 16_384,
    seed: Annotated[int, typer.Option(help="Seed of weights, data order and masking.")] = 0,
) -> None:
    """Train a small encoder with each attention on the standard library's sources, then time them against the length."""
    settings = Settings(steps=steps, longest=longest, seed=seed)
    console = Console()
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        tasks = {name: progress.add_task(f"training {TITLES[name]}", total=steps) for name in METHODS}
        timing = progress.add_task("timing", total=None)

        def on_step(name: str, step: int, loss: float) -> None:
            progress.update(tasks[name], completed=step + 1, description=f"training {TITLES[name]}, loss {loss:.2f}")

        def on_measured(name: str, length: int) -> None:
            progress.update(timing, advance=1, description=f"timing {TITLES[name]} at {length:,}")

        result = run(settings, on_step, on_measured)
        progress.update(timing, total=progress.tasks[-1].completed)
    print_tables(result, console)
    written = [write_result(out / "demo.json", result, seed), *plot(result, out)]
    console.print("written: " + ", ".join(map(str, written)))
