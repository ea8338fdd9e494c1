"""`lln bench sums`: how the error of float32 attention grows with the length."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import folder_to_write
from lln_cli.terminal import telling


def sums(
    out: Annotated[Path, folder_to_write("Folder for the JSON.")] = Path("runs/bench"),
    longest: Annotated[int, typer.Option(min=1000, help="Longest sequence.")] = 1_000_000,
    decoded: Annotated[int, typer.Option(min=1, help="Tokens to decode.")] = 20_000,
) -> None:
    """Errors of outputs and gradients against float64, from 1,000 tokens up, for constant and Gaussian inputs."""
    from lln.results import write_result
    from lln_lab.bench.long_sums import NAMES, Plan, run

    console = Console()
    plan = Plan(lengths=(*(n for n in (1_000, 10_000, 100_000) if n < longest), longest), decoded=decoded)
    with telling(console) as tell:
        result = run(plan, tell)
    table = Table(title="Error of outputs over max|v|, and of gradients over their root mean square")
    for heading in ("", "inputs", "direction", "length", "output", *NAMES):
        table.add_column(heading, justify="left" if heading in ("", "inputs", "direction") else "right")
    for row in result["errors"]:
        gradients = (f"{row['gradients'][name]:.1e}" for name in NAMES)
        direction = "causal" if row["causal"] else "both"
        table.add_row(
            row["backend"], row["inputs"], direction, f"{row['length']:,}", f"{row['output']:.1e}", *gradients
        )
    console.print(table)
    for row in result["decoding"]:
        console.print(
            f"{row['backend']}, {row['tokens']:,} {row['inputs']} tokens decoded one by one: {row['output']:.1e}"
        )
    console.print(f"written: {write_result(out / 'long_sums.json', result, plan.seed)}")
