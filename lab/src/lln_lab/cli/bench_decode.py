"""`lln bench decode`: time and memory of decoding a token against the length of the context."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import folder_to_write
from lln_cli.terminal import telling


def decode(
    out: Annotated[Path, folder_to_write("Folder for the JSON.")] = Path("runs/bench"),
    longest: Annotated[int, typer.Option(min=1000, help="Longest context.")] = 100_000,
    steps: Annotated[int, typer.Option(min=1, help="Tokens to decode; the median counts.")] = 30,
) -> None:
    """Decode with a small random Llama after 1,000 tokens and more: LLN, LLN+Diag, and softmax with a key-value cache."""
    from lln.results import write_result
    from lln_lab.bench.decode import Plan, run

    console = Console()
    contexts = (*(n for n in (1_000, 10_000, 100_000) if n < longest), longest)
    with telling(console, "reading") as tell:
        result = run(Plan(contexts=contexts, steps=steps), tell)
    table = Table(title="Decoding one token, batch 1")
    for heading in ("attention", "context", "time", "to the shortest", "cache", "memory of a step"):
        table.add_column(heading, justify="left" if heading == "attention" else "right")
    for row in result["rows"]:
        table.add_row(
            row["attention"], f"{row['context']:,}", f"{1e3 * row['seconds_per_token']:.2f} ms",
            f"{row['ratio_to_shortest']:.2f}", f"{row['cache_bytes'] / 1e6:.2f} MB",
            f"{row['peak_extra_bytes_of_a_step'] / 1e6:.2f} MB",
        )  # fmt: skip
    console.print(table)
    console.print(f"written: {write_result(out / 'decode.json', result)}")
