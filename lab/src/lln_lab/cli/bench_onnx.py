"""`lln bench onnx`: an encoder in torch and in ONNX Runtime."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import folder_to_write


def onnx(
    out: Annotated[Path, folder_to_write("Folder for the JSON.")] = Path("runs/bench"),
    lengths: Annotated[str, typer.Option(help="Lengths, with commas.")] = "512,2048,8192",
    layers: Annotated[int, typer.Option(min=1, help="Layers of the encoder.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 5,
) -> None:
    """Size and speed before and after export: softmax, LLN, LLN+Diag and a converted encoder, any length in one graph."""
    from lln.results import write_result
    from lln_lab.bench.onnx import Plan, run

    console = Console()
    plan = Plan(lengths=tuple(int(n) for n in lengths.split(",")), layers=layers, repeats=repeats)
    with console.status("exporting") as status:
        result = run(plan, status.update)
    table = Table(title="CPU time of a pass, ms: torch, ONNX Runtime")
    for heading in ("attention", "weights, MB", "ONNX, MB", *(f"{n:,}" for n in plan.lengths)):
        table.add_column(heading, justify="left" if heading == "attention" else "right")
    for row in result["rows"]:
        sizes = (f"{row[name] / 1e6:.2f}" for name in ("weights_bytes", "onnx_bytes"))
        times = (" / ".join(f"{1e3 * s:.1f}" for s in at["cpu_seconds"].values()) for at in row["at"])
        table.add_row(row["attention"], *sizes, *times)
    console.print(table)
    console.print(f"written: {write_result(out / 'onnx.json', result, plan.seed)}")
