"""`lln bench near-far-suspects`: which estimate makes near-far attention good or bad in a causal model."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.hf_options import BlockSize, FirstTokens, Model, Neighbours, Threads
from lln_cli.out_options import file_to_write


def near_far_suspects(
    model: Model,
    data: Annotated[Path, typer.Option(exists=True, help="Texts to fit on: one per line, or JSON lines; may be .xz.")],
    test_data: Annotated[Path, typer.Option(exists=True, help="Texts to measure on.")],
    out: Annotated[Path, file_to_write("JSON file to write.")] = Path("runs/bench/near_far_suspects.json"),
    length: Annotated[int, typer.Option(min=8, help="Tokens per text.")] = 512,
    join: Annotated[
        int, typer.Option(min=0, help="Join lines to texts of about this many characters; 0: one text per line.")
    ] = 4000,
    texts: Annotated[int, typer.Option(min=1, help="Texts to fit on.")] = 3,
    test_texts: Annotated[int, typer.Option(min=1, help="Texts to measure on.")] = 4,
    block_size: BlockSize = 64,
    neighbours: Neighbours = 1,
    first_tokens: FirstTokens = 4,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant; may be repeated.")] = None,
    threads: Threads = 0,
    seed: Annotated[int, typer.Option(help="Seed for choosing texts.")] = 0,
) -> None:
    """Perplexity and error with one estimate changed at a time; only the first two variants are linear in memory."""
    from lln_lab.bench.near_far_suspects import VARIANTS, Plan, run

    unknown = [name for name in variant or [] if name not in VARIANTS]
    if unknown:
        raise typer.BadParameter(f"--variant must be one of {', '.join(VARIANTS)}; got {', '.join(unknown)}")
    console = Console()
    plan = Plan(
        model, str(data), str(test_data), length, join, texts, test_texts, block_size, neighbours, first_tokens,
        tuple(variant or VARIANTS), threads, seed,
    )  # fmt: skip
    result = run(plan, out, console.print)
    table = Table(title=f"{result['model']}, {length:,} tokens; softmax {result['softmax']['all']:.1f}")
    for heading in ("variant", "error of an attention", "perplexity", "to near alone"):
        table.add_column(heading)
    for row in result["rows"]:
        found = row["by_position"]["all"]
        beside = found["log_ratio_to_first_row"]
        table.add_row(
            row["variant"], f"{row['error']:.3f}", f"{found['perplexity']:.1f}",
            f"{beside['mean']:+.3f} ± {beside['half_width']:.3f}",
        )  # fmt: skip
    console.print(table)
    console.print(f"written: {out}")
