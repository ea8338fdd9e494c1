"""`lln bench near-far`: how close a model stays to itself with near-far attention, without a gradient step."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.hf_options import Join, Model, Threads
from lln_cli.out_options import file_to_write
from lln_cli.terminal import telling


def near_far(
    model: Model,
    data: Annotated[Path, typer.Option(exists=True, help="Texts to fit on: one per line, or JSON lines; may be .xz.")],
    test_data: Annotated[Path, typer.Option(exists=True, help="Texts to measure on.")],
    out: Annotated[Path, file_to_write("JSON file to write.")] = Path("runs/bench/near_far.json"),
    texts: Annotated[int, typer.Option(min=2, help="Long texts to fit on; for encoders also as many short ones.")] = 8,
    test_texts: Annotated[
        int, typer.Option(min=3, help="Long texts to measure on; for encoders also as many short ones.")
    ] = 48,
    length: Annotated[int, typer.Option(min=8, help="Tokens per long text.")] = 512,
    join: Join = 0,
    basis: Annotated[list[str] | None, typer.Option(help="Only this kind of fit; may be repeated.")] = None,
    threads: Threads = 0,
    seed: Annotated[int, typer.Option(help="Seed for choosing texts.")] = 0,
) -> None:
    """Fit near-far attention to a model, then measure embedding similarity (encoders) or perplexity (causal models)."""
    from lln_lab.bench.near_far import BASES, CHOSEN, NEAR_ALONE, NOT_FITTED, Plan, run

    known = (NEAR_ALONE, NOT_FITTED, *BASES, CHOSEN)
    unknown = [name for name in basis or [] if name not in known]
    if unknown:
        raise typer.BadParameter(f"--basis must be one of {', '.join(known)}; got {', '.join(unknown)}")
    console = Console()
    with telling(console, "reading") as tell:
        plan = Plan(
            model, str(data), str(test_data), texts, test_texts, length, join, tuple(basis or ()), threads, seed
        )
        result = run(plan, out, tell)
    table = Table(title=result["model"])
    for heading in ("near", "fitted", *headings(result)):
        table.add_column(heading)
    for row in result["rows"]:
        table.add_row(", ".join(f"{n} {x}" for n, x in row["near"].items()), row["basis"], *cells(row))
    console.print(table)
    console.print(f"written: {out}")


def headings(result: dict[str, Any]) -> list[str]:
    if "softmax" in result:
        return [f"perplexity, {name} (softmax {x:.1f})" for name, x in result["softmax"].items()]
    return [f"{name}: cosine / correlation of pairs" for name in result["tested_on"]]


def cells(row: dict[str, Any]) -> list[str]:
    if "by_position" in row:
        return [f"{x['perplexity']:.1f} ({x['ratio_to_softmax']:.3f})" for x in row["by_position"].values()]
    return [f"{row[g]['cosine']:.3f} / {row[g]['correlation_of_pairs']:.3f}" for g in ("long", "short") if g in row]
