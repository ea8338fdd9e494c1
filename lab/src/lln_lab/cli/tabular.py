"""`lln tabular`: TabPFN v1 with linear attention, measured."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import file_to_write


def tabular(
    checkpoint: Annotated[Path, typer.Argument(help="TabPFN's checkpoint of release 0.1.")],
    seconds: Annotated[float, typer.Option(min=0, help="CPU time to distil for; 0 leaves it out.")] = 300.0,
    splits: Annotated[int, typer.Option(min=1, help="Random halves of each set.")] = 3,
    rows: Annotated[int, typer.Option(min=0, help="Training rows of the long table; 0 leaves it out.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Of the tasks that are drawn to distil on.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads.")] = 1,
    out: Annotated[Path | None, file_to_write("Also write everything to this JSON file.")] = None,
) -> None:
    """Convert TabPFN's attention, distil it, and measure accuracy on scikit-learn's sets and a table of 100,000 rows."""
    import torch

    from lln.results import write_result
    from lln_lab.tabular.distil import Plan as DistillationPlan
    from lln_lab.tabular.measure import Plan, run
    from lln_lab.tabular.model import from_checkpoint

    torch.set_num_threads(threads)
    console = Console()
    plan = Plan(splits=splits, distillation=DistillationPlan(seconds=seconds, seed=seed), long_rows=rows)
    result = run(from_checkpoint(checkpoint), plan, lambda line: console.print(line, highlight=False))
    table = Table(title="Accuracy, per cent, by half of each set")
    for heading in ("", *plan.sets, "average"):
        table.add_column(heading)
    for name, by_set in result["accuracy"].items():
        cells = [f"{sum(values) / len(values):.1f}" for values in by_set.values()]
        table.add_row(name, *cells, f"{result['average'][name]:.1f}")
    console.print(table)
    if result["long_table"]:
        console.print(result["long_table"])
    if out is not None:
        write_result(out, {"kind": "tabular", "threads": threads, **result}, seed)
