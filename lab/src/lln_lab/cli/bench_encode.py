"""`lln bench encode`: time to encode long documents with LLN+Diag and LLN against softmax."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import folder_to_write
from lln_cli.terminal import telling, whole_numbers


def encode(
    out: Annotated[Path, folder_to_write("Folder for the JSON; lengths already in it are kept.")] = Path("runs/bench"),
    lengths: Annotated[str, typer.Option(help="Lengths, separated by commas.")] = "512,1024,2048,4096,8192",
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved runs; the median counts.")] = 5,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 leaves the choice to torch.")] = 0,
) -> None:
    """Encode with a random BERT of all-MiniLM's shape: time relative to softmax, and the break-even length."""
    from lln_lab.bench.encode import ATTENTIONS, Plan, run

    chosen = whole_numbers(lengths)
    console = Console()
    with telling(console) as tell:
        plan = Plan(lengths=chosen, batch=batch, repeats=repeats, threads=threads)
        result = run(plan, out / "encode.json", tell)
    table = Table(title=f"Encoding {batch} documents, time as a ratio to softmax")
    for heading in ("length", "softmax", *ATTENTIONS[1:]):
        table.add_column(heading, justify="right")
    for row in result["rows"]:
        ratios = (f"{row['ratio'][name]:.2f}" for name in ATTENTIONS[1:])
        table.add_row(f"{row['length']:,}", f"{row['seconds']['sdpa']:.2f} s", *ratios)
    console.print(table)
    console.print(f"faster than softmax from: {result['crossover']}")
    console.print(f"written: {out / 'encode.json'}")
