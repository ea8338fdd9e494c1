"""`lln bench near-far-terms`: what each term of near-far attention does, and how well the far mass is estimated."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import file_to_write


def near_far_terms(
    model: Annotated[
        str | None, typer.Option(help="Encoder in which to measure the far mass: folder or Hugging Face name.")
    ] = None,
    data: Annotated[Path | None, typer.Option(exists=True, help="Texts for the model.")] = None,
    out: Annotated[Path, file_to_write("JSON file to write.")] = Path("runs/bench/near_far_terms.json"),
    seed: Annotated[int, typer.Option(help="Seed for draws and for choosing texts.")] = 0,
) -> None:
    """Error of each term of near-far attention on Gaussian inputs, and the estimated far mass in a model."""
    from lln.results import write_result
    from lln_lab.bench.near_far_terms import TERMS, Plan, run
    from lln_lab.bench.near_far_terms_plot import draw
    from lln_lab.experiments.figure import save

    if (model is None) != (data is None):
        raise typer.BadParameter("give --model and --data together, or neither")
    console = Console()
    plan = Plan(model=model, data=None if data is None else str(data), seed=seed)
    result = run(plan, console.print)
    table = Table(title="Squared error over softmax's power")
    for heading in ("length", "x", *TERMS):
        table.add_column(heading, justify="right")
    for row in result["gaussian"]:
        table.add_row(f"{row['length']:,}", f"{row['x']:g}", *(f"{row['error'][name]:.3f}" for name in TERMS))
    console.print(table)
    console.print(f"written: {write_result(out, result, seed)} and {save(draw, result, out.with_suffix('.png'))}")
