"""`lln bench operator`: the chunked backend against the plain eager form of eq. 8, time and memory, and against the length."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import folder_to_write
from lln_cli.terminal import telling


def operator(
    out: Annotated[Path, folder_to_write("Folder for the JSON.")] = Path("runs/bench"),
    longest: Annotated[
        int, typer.Option(min=1024, help="Longest sequence for time against length (one head).")
    ] = 262_144,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved runs; the median counts.")] = 7,
) -> None:
    """Forward + backward at B=1, H=12, D=64, N=16,384 relative to eager PyTorch, and time against length."""
    from lln.results import write_result
    from lln_lab.bench.operator import Plan, run

    console = Console()
    with telling(console) as tell:
        result = run(Plan(longest=longest, repeats=repeats), tell)

    versus = result["against_eager"]
    table = Table(title=f"Forward + backward at N = {versus['length']:,}, 12 heads of 64, float32")
    for heading in ("", "time", "to plain eager", "peak extra memory", "to plain eager"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in versus["methods"].items():
        table.add_row(
            name, f"{1e3 * row['seconds']:.0f} ms", f"{row['time_ratio']:.2f}", f"{row['megabytes']:.0f} MB",
            f"{row['memory_ratio']:.2f}",
        )  # fmt: skip
    console.print(table)
    growth = result["growth"]
    table = Table(
        title="Time against the length, one head of 64, forward + backward: exponent of N from one length to the next"
    )
    table.add_column("length", justify="right")
    for name in growth["seconds"]:
        table.add_column(name, justify="right")
        table.add_column("exponent", justify="right")
    for i, length in enumerate(growth["lengths"]):
        cells = []
        for name, seconds in growth["seconds"].items():
            cells += [f"{1e3 * seconds[i]:.1f} ms", f"{growth['exponents'][name][i - 1]:.2f}" if i else ""]
        table.add_row(f"{length:,}", *cells)
    console.print(table)
    console.print(f"written: {write_result(out / 'operator.json', result)}")
