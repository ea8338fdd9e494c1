"""`lln bench near-far-speed`: what near-far attention costs on the CPU."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import file_to_write
from lln_cli.terminal import whole_numbers


def near_far_speed(
    out: Annotated[Path, file_to_write("JSON file to write.")] = Path("runs/bench/near_far_speed.json"),
    lengths: Annotated[str, typer.Option(help="Lengths, separated by commas.")] = "128,256,384,512,1024,4096,16384",
    repeats: Annotated[int, typer.Option(min=1, help="Calls at 4,096 tokens; shorter lengths get more.")] = 9,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
) -> None:
    """Near-far attention: time relative to bare products, growth with length, break-even with softmax, and decoding."""
    from lln.results import write_result
    from lln_lab.bench.near_far_speed import Plan, run

    console = Console()
    plan = Plan(lengths=whole_numbers(lengths), repeats=repeats, seed=seed)
    result = run(plan, console.print)
    table = Table(title="Time of the processor, as ratios to the bare products of the same pass")
    names = list(result["rows"][0]["ratio_to_bare_products"])
    for heading in ("pass", "length", *names):
        table.add_column(heading, justify="right")
    for row in result["rows"]:
        ratios = row["ratio_to_bare_products"]
        table.add_row(
            "both" if row["backward"] else "forward",
            f"{row['length']:,}",
            *(f"{ratios[name]:.2f}" if name in ratios else "" for name in names),
        )
    console.print(table)
    for name, ratio in result["decoding"]["ratio_to_lln_diag"].items():
        console.print(f"decoding, {name}: {ratio:.2f} of LLN+Diag's time")
    console.print(f"written: {write_result(out, result, seed)}")
