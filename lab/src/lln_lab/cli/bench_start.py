"""`lln bench start`: the time from nothing to `import lln`, to the first call, and to `lln --help`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import folder_to_write
from lln_cli.terminal import telling


def start(
    out: Annotated[Path, folder_to_write("Folder for the JSON.")] = Path("runs/bench"),
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved runs; the median counts.")] = 7,
) -> None:
    """Start-up time of imports, first call and `lln --help`, relative to `import torch`."""
    from lln.results import write_result
    from lln_lab.bench.start import run

    console = Console()
    with telling(console, "starting") as tell:
        result = run(repeats, tell)
    table = Table(title="Cold start")
    for heading in ("", "time", "to import torch", "least CPU time", "to import torch"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in result["starts"].items():
        cpu = (f"{1e3 * row['least_cpu_seconds']:.0f} ms", f"{row['cpu_ratio_to_import_torch']:.2f}")
        table.add_row(name, f"{1e3 * row['seconds']:.0f} ms", f"{row['ratio_to_import_torch']:.2f}", *cpu)
    console.print(table)
    console.print(f"written: {write_result(out / 'start.json', result)}")
