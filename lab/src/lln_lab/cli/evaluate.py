"""`lln evaluate`: models side by side on what people measure embeddings and language models by."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import file_to_write
from lln_cli.quiet import quiet_libraries


def evaluate(
    models: Annotated[list[str], typer.Argument(help="Folders or names of models, the original first.")],
    tasks: Annotated[
        list[str],
        typer.Option("--tasks", help="TASK:FILE, repeated; tasks are sts, retrieval, classify and perplexity."),
    ],
    count: Annotated[
        int, typer.Option(min=0, help="Random examples of each file; 0 takes all (perplexity: 8 texts).")
    ] = 0,
    max_length: Annotated[int, typer.Option(min=2, help="Tokens a text is cut at.")] = 512,
    join: Annotated[int, typer.Option(min=0, help="Perplexity: join lines until a text has so many characters.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the choice of examples.")] = 0,
    out: Annotated[Path | None, file_to_write("Also write the figures to this JSON file.")] = None,
) -> None:
    """Evaluate an original and its conversions on local files, the same examples for each."""
    quiet_libraries()
    import torch

    from lln.results import write_result
    from lln_lab.evaluate.run import evaluate as run
    from lln_lab.evaluate.tasks import TASKS, Asked

    asked = []
    for given in tasks:
        task, _, name = given.partition(":")
        if task not in TASKS or not Path(name).is_file():
            what = f"tasks are {', '.join(TASKS)}" if task not in TASKS else f"there is no file {name!r}"
            raise typer.BadParameter(f"{given!r} should be TASK:FILE; {what}", param_hint="--tasks")
        asked.append(Asked(task, Path(name), count, max_length, join, seed))
    torch.set_num_threads(threads)
    console = Console()
    rows = run(models, asked, lambda line: console.print(line, style="dim", highlight=False))
    labels = [Path(name).name for name in models]
    table = Table()
    for heading in ("task", "figure", *labels):
        table.add_column(heading)
    for row in rows:
        table.add_row(row["task"], row["figure"], *(f"{x:.4g}" for x in row["models"].values()))
    console.print(table)
    if out is not None:
        for row in rows:  # no folders of this machine in a result
            row["models"] = dict(zip(labels, row["models"].values(), strict=True))
        write_result(out, {"kind": "evaluate", "rows": rows, "count": count, "max_length": max_length}, seed)
