"""`lln bench vit`: accuracy of a vision transformer before and after its conversion."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import folder_to_write


def vit(
    out: Annotated[Path, folder_to_write("Folder for the JSON.")] = Path("runs/bench"),
    seeds: Annotated[int, typer.Option(min=1, help="Models to train, each with its own split.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training with softmax.")] = 600,
    distil_steps: Annotated[int, typer.Option(min=3, help="Steps of distillation.")] = 200,
) -> None:
    """Train a plain torch vision transformer on scikit-learn's digits, convert it, distil it; accuracy at each stage."""
    from lln.results import write_result
    from lln_lab.bench.convert_vit import Plan, run

    console, plan = Console(), Plan(seeds=tuple(range(seeds)), steps=steps, distil_steps=distil_steps)
    with console.status("training") as status:
        result = run(plan, status.update)
    table = Table(title="Accuracy, %")
    for heading in ("seed", "attention", "softmax", "converted", "distilled"):
        table.add_column(heading, justify="left" if heading == "attention" else "right")
    for row in result["rows"]:
        stages = (f"{row[name]:.1f}" if name in row else "" for name in ("softmax", "converted", "distilled"))
        table.add_row(str(row["seed"]), row["attention"], *stages)
    console.print(table)
    console.print(f"written: {write_result(out / 'vit.json', result, seeds)}")
