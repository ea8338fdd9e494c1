"""`lln bench kernels`: the native CPU kernel against the bare matrix products and everything else on the CPU."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import folder_to_write
from lln_cli.terminal import telling, whole_numbers


def kernels(
    out: Annotated[Path, folder_to_write("Folder for the JSON and the plot.")] = Path("runs/bench"),
    lengths: Annotated[str, typer.Option(help="Lengths, separated by commas.")] = "256,1024,4096,16384,65536",
    threads: Annotated[str, typer.Option(help="Numbers of threads, separated by commas.")] = "1,2",
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved runs at N = 4,096; the median counts.")] = 15,
    native_only: Annotated[
        bool, typer.Option("--native-only", help="Times of the native kernel and the bare products, and nothing else.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Short lengths and few runs, as a smoke test.")] = False,
) -> None:
    """Time and memory of the CPU kernel and its alternatives, relative to q @ (k.mT @ v)."""
    from lln.ops.lln import attention
    from lln.results import write_result
    from lln_lab.bench.kernels import Plan, run
    from lln_lab.bench.kernels_plot import draw
    from lln_lab.experiments.figure import save

    reason = attention.backends["native"].unavailable()
    if reason is not None:
        raise typer.BadParameter(f"the native backend is not available: {reason}")
    plan = Plan(whole_numbers(lengths), whole_numbers(threads, "--threads"), repeats, native_only=native_only)
    if quick:
        plan = Plan((256, 1024), plan.threads[:1], 3, memory_length=4096, long_length=50_000, native_only=native_only)
    console = Console()
    with telling(console) as tell:
        result = run(plan, tell)
    for number in plan.threads:
        for backward in (False, True):
            console.print(_table(result, number, backward))
    if result["memory"] is not None:
        console.print(_memory_table(result))
    decode = result["decode"]
    console.print(f"one token after {decode['positions'][1]:,} tokens takes {decode['ratio']:.2f} of that after 1,000")
    console.print(f"one token of LLN+Diag takes {decode['diag_to_lln']:.2f} of one of LLN")
    written = write_result(out / "kernels.json", result, plan.seed)
    console.print(f"written: {written} and {save(draw, result, out / 'kernels.png')}")


def _table(result: dict[str, Any], threads: int, backward: bool) -> Table:
    from lln_lab.bench.kernels import BARE

    rows = [row for row in result["timings"] if row["threads"] == threads and row["backward"] == backward]
    what = "Forward + backward" if backward else "Forward"
    table = Table(title=f"{what}, {threads} thread{'s' * (threads > 1)}: time as a ratio to {BARE} (median)")
    table.add_column("")
    for row in rows:
        table.add_column(f"N = {row['length']:,}", justify="right")
    for name in rows[0]["methods"]:
        cells = [f"{row['methods'][name]['ratio']:.2f}" if name in row["methods"] else "" for row in rows]
        table.add_row(name, *cells)
    table.add_row(f"{BARE}, ms", *(f"{row['methods'][BARE]['milliseconds']:.2f}" for row in rows))
    return table


def _memory_table(result: dict[str, Any]) -> Table:
    memory = result["memory"]
    table = Table(title=f"Peak extra memory of forward + backward at N = {memory['length']:,}")
    for heading in ("", "MB", "beyond output and gradients"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in memory["methods"].items():
        table.add_row(name, f"{row['bytes'] / 1e6:.0f}", f"{100 * row['beyond_results']:+.1f} %")
    return table
