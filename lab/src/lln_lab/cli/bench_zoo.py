"""`lln bench zoo`: the paper's Tables 2 and 4 on this machine, for every member of the zoo."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from lln_cli.out_options import folder_to_write
from lln_cli.terminal import whole_numbers


def zoo(
    out: Annotated[Path, folder_to_write("Folder for the JSON, the plot and intermediate results.")] = Path(
        "runs/bench"
    ),
    name: Annotated[str, typer.Option(help="Name of the JSON and the plot.")] = "zoo",
    roberta: Annotated[
        str, typer.Option(help="Lengths for the RoBERTa-base shape; empty for none.")
    ] = "512,1024,2048,4096",
    small: Annotated[
        str, typer.Option(help="Lengths for the small shape (64 wide, 2 heads, 2 layers); empty for none.")
    ] = "1024,2048,4096,8192,16384",
    members: Annotated[str, typer.Option(help="Attentions, separated by commas; empty for all.")] = "",
    layers: Annotated[int, typer.Option(min=0, help="Layers of the RoBERTa shape; 0: all 12.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; the median of the ratios counts.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps per cell.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads per cell.")] = 1,
    clock: Annotated[str, typer.Option(help="'wall', or 'cpu' (CPU time) on a busy machine.")] = "wall",
    memory_limit: Annotated[float, typer.Option(help="Memory limit per cell, in GB.")] = 12.0,
    time_limit: Annotated[float, typer.Option(help="Time limit per cell, in seconds.")] = 300.0,
) -> None:
    """Time and peak memory of a training step with every attention of the zoo, relative to softmax. Resumes if interrupted."""
    from lln import zoo as members_of_the_zoo
    from lln.results import write_result
    from lln_lab.bench.zoo import Plan, run
    from lln_lab.bench.zoo_plot import draw
    from lln_lab.experiments.figure import save

    lengths = {
        name: list(whole_numbers(given, f"--{name}")) if given else []
        for name, given in (("roberta", roberta), ("small", small))
    }
    plan = Plan(
        lengths={shape: chosen for shape, chosen in lengths.items() if chosen},
        members=members.split(",") if members else members_of_the_zoo.names(),
        layers={"roberta": layers} if layers else {},
        rounds=rounds,
        steps=steps,
        threads=threads,
        clock=clock,
        memory_limit=memory_limit,
        time_limit=time_limit,
    )
    console = Console()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description:<44}"), *columns, console=console) as progress:
        task = progress.add_task("starting", total=sum(1 for _ in plan.cells()))
        result = run(plan, out / f"{name}.notes.jsonl", lambda what: progress.update(task, description=what, advance=1))
    for shape in plan.lengths:
        for table in tables(result, shape):
            console.print(table)
    console.print(
        f"written: {write_result(out / f'{name}.json', result, seed=0)} and {save(draw, result, out / f'{name}.png')}"
    )


def tables(result: dict[str, Any], shape: str) -> list[Table]:
    """In the layout of the paper's Table 2, a column for each length: ratios to softmax, the paper's in brackets."""
    rows = [row for row in result["rows"] if row["shape"] == shape]
    lengths = sorted({row["length"] for row in rows})
    drawn = []
    for title, measure, ratio, paper in (
        ("memory, ratio to softmax (the paper's)", "peak_bytes", "peak_bytes_ratio", "memory"),
        ("time of a training step, ratio to softmax (the paper's)", "step_seconds", "step_seconds_ratio", "time"),
        (
            "attention alone, forward, ratio to softmax",
            "attention_forward_seconds",
            "attention_forward_seconds_ratio",
            "",
        ),
        ("attention alone, training, ratio to softmax", "attention_train_seconds", "attention_train_seconds_ratio", ""),
    ):
        table = Table(title=f"{shape}: {title}")
        table.add_column("member")
        for length in lengths:
            table.add_column(f"{length:,}", justify="right")
        for member in dict.fromkeys(row["member"] for row in rows):
            cells = []
            for length in lengths:
                row = next(r for r in rows if r["member"] == member and r["length"] == length)
                cells.append(_cell(row, measure, ratio, paper))
            table.add_row(member, *cells)
        drawn.append(table)
    return drawn


def _cell(row: dict[str, Any], measure: str, ratio: str, paper: str) -> str:
    if row["status"] != "ok":
        return str(row["status"])
    if row["member"] == "softmax" or row[ratio] is None:
        value = row[measure]
        return f"{value / 1e6:.0f} MB" if measure == "peak_bytes" else f"{1e3 * value:.1f} ms"
    own = f"{row[ratio]:.2f}"
    return f"{own} ({row['paper'][paper]:.2f})" if row["paper"] and paper else own
