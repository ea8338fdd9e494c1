"""`lln bench near-far`: how close an encoder stays to itself with near-far attention, without a gradient step."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lln_cli.out_options import file_to_write


def near_far(
    model: Annotated[str, typer.Argument(help="An encoder: a folder or a name.")],
    data: Annotated[Path, typer.Option(exists=True, help="Texts to fit on: a line each, or JSON lines (.xz too).")],
    test_data: Annotated[Path, typer.Option(exists=True, help="Texts to measure on.")],
    out: Annotated[Path, file_to_write("The JSON.")] = Path("runs/bench/near_far.json"),
    texts: Annotated[int, typer.Option(min=1, help="Long and as many short texts to fit on.")] = 8,
    test_texts: Annotated[int, typer.Option(min=1, help="Long and as many short texts to measure on.")] = 48,
    threads: Annotated[int, typer.Option(min=0, help="Threads; 0 leaves it to torch.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the choice of texts.")] = 0,
) -> None:
    """Four weights a head in closed form, then the similarity of embeddings to the original's."""
    from lln_lab.bench.near_far import Plan, run

    console = Console()
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("reading", total=None)
        plan = Plan(model, str(data), str(test_data), texts, test_texts, threads, seed)
        result = run(plan, out, lambda what: progress.update(task, description=what))
        progress.update(task, total=1, completed=1)
    table = Table(title=f"{result['model']}: cosine to the original / correlation of pairs")
    for heading in ("near", "fitted", "long", "short"):
        table.add_column(heading)
    for row in result["rows"]:
        found = (
            f"{row[g]['cosine']:.3f} / {row[g]['correlation_of_pairs']:.3f}" for g in ("long", "short") if g in row
        )
        table.add_row(", ".join(f"{n} {x}" for n, x in row["near"].items()), row["basis"], *found)
    console.print(table)
    console.print(f"written: {out}")
