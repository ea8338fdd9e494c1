"""`lln evidence`: softmax against linear attentions on eleven tasks, resumable."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import folder_to_write

# glibc keeps what a step has freed for the next one, in large pages, instead of giving it back to the system, from which every
# step would fetch it again, page by page. The numbers stay the same.
KEEP_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=17179869184"


def evidence(
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")] = None,
    data: Annotated[str | None, typer.Option(help="Folder with the data sets; default: built-in data.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder of the encoder that the tasks glue and imdb convert.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; default: three.")] = None,
    known: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder with earlier results: their runs are taken over."),
    ] = None,
    out: Annotated[Path, folder_to_write("Folder for runs and results.")] = Path("runs/evidence"),
    list_: Annotated[bool, typer.Option("--list", help="Show what has run and what is left, and stop.")] = False,
    time: Annotated[
        bool, typer.Option("--time", help="Only time a few steps of each attention, in turns: OUT/step_times.json.")
    ] = False,
) -> None:
    """Train softmax, LLN, LLN+Diag, near-far attention and the best other one on eleven tasks. Resumes if interrupted."""
    from lln_lab.evidence.plan import SEEDS, TASKS
    from lln_lab.evidence.plan import task as named
    from lln_lab.evidence.step_times import keep

    chosen = [named(name) for name in task] if task else list(TASKS)
    if list_:
        _show(known or out)
        return
    if time and (seeds is not None or known is not None):
        raise typer.BadParameter("--time trains nothing to its end: --seeds and --known do not go with it")
    place = out / "timed" if time else out  # the runs: those of another number of steps have folders of their own
    for each in chosen:
        if each.converts and model is None:
            if task:
                raise typer.BadParameter(
                    f"the task {each.name} converts a pretrained encoder: give its folder", param_hint="--model"
                )
            Console().print(f"{each.name} left out: it needs --model", highlight=False)
            continue
        given = each.timing_command() if time else each.command(seeds or SEEDS)
        given += ["--out", str(place / each.name)]
        given += ["--data", data] if data and not each.embedded else []
        given += ["--model", str(model)] if each.converts else []
        if known is not None and (before := known / f"{each.name}.json").exists():
            given += ["--known", str(before)]
        kept = {"GLIBC_TUNABLES": KEEP_MEMORY, **os.environ}
        ended = subprocess.run([sys.executable, "-m", "lln_cli", *given], check=False, env=kept).returncode
        if ended:
            raise typer.Exit(ended)
        result = place / each.name / f"{each.experiment}.json"
        if time:
            keep(out, each.name, result)
        else:
            shutil.copy(result, out / f"{each.name}.json")
    if not time:
        _show(out)


def _show(folder: Path) -> None:
    from lln_lab.evidence.ledger import ledger
    from lln_lab.evidence.plan import COMPARED
    from lln_lab.evidence.standing import Compared
    from lln_lab.names import name_of

    table = Table(title="Gain over softmax at equal steps", title_justify="left")
    for column in ("task", "runs", "softmax"):
        table.add_column(column)
    for name in COMPARED:
        table.add_column(name_of(name), justify="right")
    for entry in ledger(folder):
        row = [entry.task.title, f"{entry.done} of {entry.planned}"]
        found = entry.standing
        if found is None:
            table.add_row(*row, *["–"] * (1 + len(COMPARED)))
            continue
        gains: dict[str, Compared] = {one.attention: one for one in found.equal_steps}
        told = [gains[name].gain.told(found.form) if name in gains else "–" for name in COMPARED]
        table.add_row(*row, f"{found.softmax:{found.form}}", *told)
    Console().print(table)
