"""`lln calibrate`: measure the table behind moment matching again, from stated seeds."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lln_cli.out_options import file_to_write


def calibrate(
    out: Annotated[Path, file_to_write("JSON file for the table.")] = Path("runs/calibration/matching.json"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; the shipped table used 64.")] = 64,
    head_dims: Annotated[
        list[int] | None, typer.Option("--head-dim", help="Only this head size; may be repeated.")
    ] = None,
) -> None:
    """Measure how concentrated softmax and LLN are on Gaussian inputs, and write the table that moment matching uses.

    Finished cells of (head size, length) are kept beside the table, so an interrupted run resumes where it stopped.
    """
    from lln.matching import calibration
    from lln.results import provenance
    from lln.writing import whole

    dims = sorted(head_dims or calibration.HEAD_DIMS)
    if len(dims) < 2 or dims[0] < 1:
        raise typer.BadParameter(f"a table needs at least two positive head sizes to interpolate between; got {dims}")
    stated = list(range(seeds))
    todo = [(d, n) for d in dims for n in calibration.LENGTHS]
    cells: dict[tuple[int, int], calibration.Curves] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("calibrating", total=len(todo))
        for head_dim, length in todo:
            progress.update(task, description=f"d = {head_dim}, N = {length}")
            kept = calibration.cell_path(out.parent / "cells", head_dim, length, seeds)
            if not kept.exists():
                calibration.save_cell(kept, calibration.average(head_dim, length, stated))
            cells[head_dim, length] = calibration.load_cell(kept)
            progress.advance(task)
    table = calibration.assemble(cells, stated, provenance())
    with whole(out) as aside:
        aside.write_text(json.dumps(table, separators=(",", ":")) + "\n", encoding="utf-8")
    typer.echo(f"{out}: {out.stat().st_size / 1e3:.0f} kB, {len(dims)} head sizes, {seeds} seeds")
