"""`lln bench gpu`: every operation on a GPU against flash attention, fla's linear attentions and a copy."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import folder_to_write
from lln_cli.terminal import telling


def gpu(
    out: Annotated[Path, folder_to_write("Folder for the JSON and the plot.")] = Path("runs/bench"),
    longest: Annotated[int, typer.Option(min=1024, help="Longest sequence.")] = 65_536,
    batch: Annotated[int, typer.Option(min=1)] = 4,
    heads: Annotated[int, typer.Option(min=1)] = 12,
    head_dim: Annotated[int, typer.Option(min=1, max=256)] = 64,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    repeats: Annotated[int, typer.Option(min=1, help="The median counts.")] = 30,
) -> None:
    """Times and shares of the card's bandwidth. Without a GPU it says so and ends with exit code 2."""
    from lln.results import write_result
    from lln_lab.bench.gpu import NoGPU, Plan, run
    from lln_lab.bench.gpu_plot import plot

    console = Console()
    lengths = (*(n for n in Plan.lengths if n < longest), longest)
    plan = Plan(lengths, batch, heads, head_dim, dtype, repeats)
    try:
        with telling(console, "looking for a GPU") as tell:
            result = run(plan, tell)
    except NoGPU as reason:
        typer.echo(str(reason), err=True)
        raise typer.Exit(2) from None
    table = Table(title=f"{result['card']}: a copy moves {result['copy_gigabytes_per_second']:.0f} GB/s")
    for heading in ("method", "length", "pass", "ms", "GB/s", "of a copy"):
        table.add_column(heading, justify="left" if heading in ("method", "pass") else "right")
    for row in result["rows"]:
        told = (row["method"], f"{row['length']:,}", "forward + backward" if row["backward"] else "forward")
        if "failed" in row:
            table.add_row(*told, "failed", "", "")
        else:
            table.add_row(
                *told, f"{row['milliseconds']:.3f}", f"{row['gigabytes_per_second']:.0f}", f"{row['share_of_copy']:.2f}"
            )
    console.print(table)
    console.print(f"written: {write_result(out / 'gpu.json', result, plan.seed)}")
    console.print(f"written: {plot(result, out / 'gpu.png')}")
