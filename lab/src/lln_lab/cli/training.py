"""What the commands that train have in common: options, progress with the time left, errors, and the files they write."""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from lln_cli.out_options import folder_to_write
from lln_lab.cli.verdicts import say
from lln_lab.names import name_of, task_of

MISSING_DATA = 3  # exit code
PAPERS = "paper"  # for --attention: those of the paper's table


class Preset(StrEnum):
    cpu = "cpu"
    paper = "paper"


class Precision(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


PresetOption = Annotated[
    Preset, typer.Option(help="cpu: minutes to an hour on two cores. paper: the paper's sizes and hyper-parameters.")
]
OutOption = Annotated[Path | None, folder_to_write("Folder for runs and result; default: runs/<name>.")]


@dataclass(frozen=True)
class Choice:
    """The options that every training command has."""

    preset: PresetOption = Preset.cpu
    data: Annotated[
        str | None,
        typer.Option(help="Folder with the data, 'hub' or 'hub:NAME'; default: built-in data (docs/data.md)."),
    ] = None
    out: OutOption = None
    attention: Annotated[
        list[str] | None,
        typer.Option(
            help="Attention of the zoo; may be repeated. With options: lln_diag:block_size=32. With its own number of "
            "seeds: elu@1. 'paper': all methods of the paper's table."
        ),
    ] = None
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds.")] = None
    steps: Annotated[int | None, typer.Option(min=1, help="Steps per run; default: the preset's.")] = None
    validation_rows: Annotated[int | None, typer.Option(min=1, help="Validate on at most this many rows.")] = None
    accumulate: Annotated[
        int | None,
        typer.Option(min=1, help="Micro-batches per step and process; default: the preset's."),
    ] = None
    precision: Annotated[Precision | None, typer.Option(help="Autocast precision; default: the preset's.")] = None
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Recompute layers in the backward pass to save memory.")
    ] = False
    known: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="JSON of an earlier result: its runs are taken over, not trained again."
        ),
    ] = None
    check: Annotated[
        bool,
        typer.Option("--check", help="Dry run: count weights, FLOPs and memory, and take one tiny step."),
    ] = False

    def settings(self, presets: Mapping[str, Any], contestants: Sequence[str] = (), **more: Any) -> Any:
        """The preset with what the command line says instead; `contestants` where it names none."""
        from lln_lab.experiments.budgets import changed

        preset = presets[self.preset.value]
        named = presets[Preset.paper].contestants if self.attention == [PAPERS] else self.attention
        said = {
            "contestants": tuple(named or contestants),
            "seeds": self.seeds,
            "validation_rows": self.validation_rows,
            **more,
        }
        return replace(changed(preset, self.budget), **{name: value for name, value in said.items() if value})

    def budget(self, preset: Any) -> Any:
        """The preset's budget with the steps, the pieces and the precision that the command line names."""
        said = {
            "accumulate": self.accumulate,
            "precision": self.precision and self.precision.value,
            "checkpointing": self.checkpointing,
        }
        budget = replace(preset.shortened(self.steps), **{name: value for name, value in said.items() if value})
        budget.at_once()  # a batch that cannot be cut so is refused here, before anything is loaded
        return budget

    def under(self, name: str) -> "Choice":
        """The same, in a folder of its own beneath --out."""
        assert self.out is not None
        return replace(self, out=self.out / name)


def training_command(function: Callable[..., None]) -> Callable[..., None]:
    """f(choice, *, own options) as a command with the options of `Choice` before its own."""
    shared = [
        inspect.Parameter(x.name, inspect.Parameter.KEYWORD_ONLY, default=x.default, annotation=x.type)
        for x in fields(Choice)
    ]
    own = list(inspect.signature(function).parameters.values())[1:]

    @wraps(function)
    def command(**given: Any) -> None:
        choice = Choice(**{x.name: given.pop(x.name) for x in shared})
        function(choice, **given)

    parameters = [*shared, *own]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {x.name: x.annotation for x in parameters}
    return command


class Bars:
    """A bar for the runs, one for the steps of the current run with its loss and the time left."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.runs: TaskID | None = None
        self.steps: TaskID | None = None

    def begin(self, name: str, number: int, of: int) -> Callable[[int, int, float | None], None]:
        if self.runs is None:
            self.runs, self.steps = (
                self.progress.add_task("runs", total=of),
                self.progress.add_task("steps", total=None),
            )
        runs, steps = self.runs, self.steps
        assert steps is not None
        self.progress.update(runs, completed=number - 1, total=of, description=f"run {number} of {of}")
        self.progress.reset(steps, description=name)

        def on_step(step: int, total: int, loss: float | None) -> None:
            shown = name if loss is None else f"{name}, loss {loss:.3f}"
            self.progress.update(steps, completed=step, total=total, description=shown)

        return on_step


@contextmanager
def bars(console: Console) -> Iterator[Bars]:
    columns = (TextColumn("{task.description:<48}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield Bars(progress)


def start(name: str, choice: Choice, run: Callable[[Path, Bars], dict[str, Any]], draw: Any = None) -> Path:
    """Run it under progress bars; write JSON, table and plot; missing data end in a message and an exit code of their own."""
    first = int(os.environ.get("RANK", "0")) == 0  # of several processes one speaks and writes
    folder, console = choice.out or Path("runs") / name, Console(quiet=not first)
    if choice.known is not None and first:
        from lln_lab.experiments.training.known import restore

        asked = () if choice.attention == [PAPERS] else choice.attention or ()
        laid, left_out = restore(choice.known, folder, asked, choice.steps)
        others = f"; {left_out} left out, as they trained for other steps" if left_out else ""
        console.print(f"{laid} runs taken over from {choice.known}{others}", highlight=False)
    with bars(console) as watcher:
        found = in_words(lambda: run(folder, watcher), console)
    return finish(name, folder, found, draw, console) if first else folder / f"{name}.json"


def check(planned: Callable[[], Any]) -> None:
    """What the run would cost, as a table; nothing is written."""
    from lln_lab.experiments.check import check as table

    console = Console()
    show({"tables": [in_words(lambda: table(planned()), console)]}, console)
    console.print("check passed", style="bold green", highlight=False)


def in_words(what: Callable[[], Any], console: Console | None = None) -> Any:
    """The result; data that is not there ends in a message and an exit code of its own."""
    from lln_lab.data import MissingData

    try:
        return what()
    except MissingData as missing:
        (console or Console()).print(f"[bold red]missing data:[/] {missing}", highlight=False)
        raise typer.Exit(MISSING_DATA) from missing


def finish(name: str, folder: Path, found: dict[str, Any], draw: Any, console: Console) -> Path:
    """Print what was found and write it."""
    from lln.results import write_result

    show(found, console)
    written = write_result(folder / f"{name}.json", found)
    drawn = ""
    if draw is not None:
        from lln_lab.experiments.figure import save

        drawn = f" and {save(draw, found, folder / f'{name}.png')}"
    console.print(f"{written}{drawn} written", highlight=False, soft_wrap=True)
    return written


def show(found: dict[str, Any], console: Console) -> None:
    """The data, the tables and the verdicts of a result."""
    data = found.get("data", {})
    for each in data if isinstance(data, list) else [data]:
        if each:
            rows = ", ".join(f"{count:,} {split}" for split, count in each["rows"].items())
            console.print(f"data: {each['name']} from {each['source']}, rows: {rows}", highlight=False, soft_wrap=True)
            for file, sha in each["files"].items():
                console.print(f"  sha256 {sha[:16]}…  {file}", highlight=False, soft_wrap=True)
    for given in found.get("tables", []):
        _print_table(given, console)
        if given.get("note"):
            console.print(f"[dim]{given['note']}[/]", highlight=False)
        if given.get("paper"):
            _print_table(given["paper"], console)
    say(found.get("verdicts", ()), console)


def _print_table(given: dict[str, Any], console: Console) -> None:
    """The columns that fit the terminal; what does not fit is named, and stands in the JSON."""
    cells = [
        ["–" if cell is None else f"{cell:,}" if isinstance(cell, int | float) else name_of(str(cell)) for cell in row]
        for row in given["rows"]
    ]
    given = given | {"columns": [name_of(task_of(column)) for column in given["columns"]]}
    fits = _columns_that_fit(given["columns"], cells, console.width)
    table = Table(title=escape(given["title"]), title_justify="left")
    for number in fits:
        table.add_column(escape(given["columns"][number]), justify="left" if number == 0 else "right")
    for row in cells:
        table.add_row(*(escape(row[number]) for number in fits if number < len(row)))
    console.print(table)
    left_out = [column for number, column in enumerate(given["columns"]) if number not in fits]
    if left_out:
        console.print(f"not shown for lack of room, but in the JSON: {', '.join(left_out)}", style="dim", markup=False)


def _columns_that_fit(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """From the left, as many as fit; headings may wrap between words."""
    found, taken = list[int](), 1
    for number, column in enumerate(columns):
        content = [row[number] for row in cells if number < len(row)]
        needed = 3 + max(map(len, [*column.split(), *content, ""]))
        if found and taken + needed > width:
            break
        found.append(number)
        taken += needed
    return found
