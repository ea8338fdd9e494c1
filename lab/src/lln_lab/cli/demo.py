"""`lln demo`: the main job in small. Pre-train three attentions, watch them, time them, and write the report."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lln_cli.out_options import folder_to_write
from lln_lab.cli.training import bars, finish


def demo(
    out: Annotated[Path, folder_to_write("Folder for the runs, the JSON, the plot and the report.")] = Path(
        "runs/demo"
    ),
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps per attention.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per attention.")] = 1,
    longest: Annotated[int, typer.Option(min=256, help="Longest sequence to time.")] = 16_384,
) -> None:
    """Train softmax, LLN and LLN+Diag side by side on Python's own sources, time them, and write a page.

    Takes a few minutes on two cores. If interrupted, run it again to resume.
    """
    from lln.results import write_result
    from lln_lab.experiments import demo as experiment
    from lln_lab.report import write
    from lln_lab.report.collect import MAPS

    settings = replace(experiment.shortened(experiment.Settings(), steps, seeds), longest=longest)
    console = Console()
    with bars(console) as watcher:
        timing = watcher.progress.add_task("timing", total=None, visible=False)

        def on_measured(name: str, length: int) -> None:
            watcher.progress.update(timing, visible=True, advance=1, description=f"timing {name} at {length:,}")

        found = experiment.run(settings, out, watcher, on_measured)
        watcher.progress.update(timing, total=watcher.progress.tasks[timing].completed)
    maps = write_result(out / f"demo{MAPS}", {"maps": found.pop("maps")})
    written = finish("demo", out, found | {"maps_beside": maps.name}, experiment.draw, console)
    page = write([written], out / "report.html", "Linear Log-Normal attention: the demo")
    console.print(f"[bold]report[/] {page.resolve()}", highlight=False, soft_wrap=True)
