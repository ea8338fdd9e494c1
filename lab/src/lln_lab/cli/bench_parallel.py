"""`lln bench parallel`: one sequence over several processes, measured, and over more devices, on paper."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import folder_to_write


def parallel(
    out: Annotated[Path, folder_to_write("Folder for the JSON.")] = Path("runs/bench"),
    plan: Annotated[bool, typer.Option("--plan", help="Measure nothing: estimate a step on other hardware.")] = False,
    tokens: Annotated[int, typer.Option(min=1024, help="Tokens of the longest training sequence.")] = 1_048_576,
    longest: Annotated[int, typer.Option(min=0, help="Attention only, one head of 16, on this many tokens.")] = 0,
    speed: Annotated[bool, typer.Option("--speed", help="Attention only, two processes against one.")] = False,
    steps: Annotated[int, typer.Option(min=2, help="Training steps.")] = 3,
    devices: Annotated[int, typer.Option(min=1, help="For --plan: number of devices.")] = 8,
    layers: Annotated[int, typer.Option(min=1, help="For --plan: size of the model.")] = 12,
    width: Annotated[int, typer.Option(min=1, help="For --plan: size of the model.")] = 768,
    heads: Annotated[int, typer.Option(min=1, help="For --plan: size of the model.")] = 12,
    operations: Annotated[float, typer.Option(help="For --plan: operations per second and device.")] = 300e12,
    bandwidth: Annotated[float, typer.Option(help="For --plan: bytes per second of a device's link.")] = 50e9,
) -> None:
    """Memory, traffic and loss of training on one sequence split over 1, 2 and 4 processes."""
    from lln.results import write_result

    console = Console()
    if plan:
        from lln_lab.bench import parallel_plan

        setting = parallel_plan.Setting(
            tokens=tokens,
            devices=devices,
            layers=layers,
            width=width,
            heads=heads,
            operations=operations,
            bandwidth=bandwidth,
        )
        found = parallel_plan.planned(setting)
        console.print(parallel_plan.__doc__)
        table = Table(title=f"A step of {tokens:,} tokens over {devices} devices, on paper")
        for heading in ("", "compute", "exchange", "step", "received a layer", "memory a device", ""):
            table.add_column(heading, justify="right" if heading else "left")
        for name, row in found["schemes"].items():
            seconds = (f"{row[f'{k}_seconds']:.3g} s" for k in ("compute", "exchange", "step"))
            sizes = f"{row['received_bytes_a_layer'] / 1e6:,.1f} MB", f"{row['memory_bytes'] / 1e9:,.1f} GB"
            table.add_row(name, *seconds, *sizes, row["cannot"])
        console.print(table)
        console.print(f"written: {write_result(out / 'parallel_plan.json', found)}")
        return
    from lln_lab.bench.parallel import Plan, run, run_longest, run_timed

    if speed:
        found = run_timed(Plan(), console.print)
        console.print(f"two processes against one: {found['speed_up']}, load {found['load_before']:.1f}")
        console.print(f"written: {write_result(out / 'parallel_speed.json', found)}")
        return
    if longest:
        found = run_longest(Plan(longest=longest))
        most = max(found["peak_bytes"]) / 1e9
        console.print(
            f"{longest:,} tokens, forward and backward: {found['wall_seconds']:.1f} s, {most:.2f} GB a process"
        )
        console.print(f"written: {write_result(out / 'parallel_longest.json', found)}")
        return
    chosen = Plan(lengths=tuple(sorted({max(1024, tokens // 4), tokens})), steps=steps)
    result = run(chosen, console.print)
    table = Table(title="One sequence over several processes")
    for heading in (
        "tokens",
        "processes",
        "peak a process",
        "over its share",
        "states sent",
        "formula",
        "last loss",
        "off by",
    ):
        table.add_column(heading, justify="right")
    for row, goal in zip(result["training"], result["goals"], strict=True):
        table.add_row(
            f"{row['tokens']:,}", str(row["processes"]), f"{max(row['peak_bytes']) / 1e6:,.0f} MB",
            f"{goal['peak_over_share']:.2f}", f"{row['states_sent_a_step']:,}", f"{row['states_formula']:,}",
            f"{row['losses'][-1]:.4f}", f"{goal['losses_relative']:.1e}",
        )  # fmt: skip
    console.print(table)
    console.print(f"attention alone, two processes against one: {result['attention']['speed_up']}")
    console.print(f"written: {write_result(out / 'parallel.json', result, chosen.seed)}")
