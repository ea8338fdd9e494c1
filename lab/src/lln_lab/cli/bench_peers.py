"""`lln bench peers`: members of the zoo against the packages a user would install instead."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from lln_cli.out_options import folder_to_write


def peers(
    out: Annotated[Path, folder_to_write("Folder for the JSON.")] = Path("runs/bench"),
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved runs; the median counts.")] = 7,
) -> None:
    """Compare the zoo with performer-pytorch, nystrom-attention, linformer, reformer-pytorch and local-attention."""
    from lln.results import write_result
    from lln_lab.bench.peers import PEERS, SIZES, run

    console = Console()
    with Progress(TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), console=console) as progress:
        task = progress.add_task("starting", total=len(PEERS) * len(SIZES))
        result = run(repeats, lambda what: progress.update(task, description=what, advance=1))
    table = Table(title="Their time over ours (above 1: ours is faster)")
    for heading in ("package", "member", "width", "length", "forward", "training"):
        table.add_column(heading, justify="left" if heading in ("package", "member") else "right")
    for row in result["rows"]:
        ratios = [
            f"{row[kind]['theirs_over_ours']:.2f}" if kind in row else "not installed" for kind in ("forward", "train")
        ]
        package = f"{row['package']} {row['version'] or ''}".strip()
        table.add_row(package, row["member"], str(row["embed_dim"]), f"{row['length']:,}", *ratios)
    console.print(table)
    console.print(f"written: {write_result(out / 'peers.json', result, seed=0)}")
