"""`lln choose`: which attention for a shape, measured on this machine."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lln_cli.out_options import file_to_write


def choose(
    length: Annotated[int, typer.Option(min=1, help="Tokens per input.")],
    width: Annotated[int, typer.Option(min=1, help="Width of the model.")] = 768,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")] = 12,
    causal: Annotated[bool, typer.Option("--causal", help="For language models: no token sees later ones.")] = False,
    serving: Annotated[bool, typer.Option("--serving", help="Forward only; otherwise forward and backward.")] = False,
    member: Annotated[list[str] | None, typer.Option(help="Only this attention of the zoo; may be repeated.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to print; --out keeps all.")] = 8,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; the median ratio counts.")] = 2,
    clock: Annotated[str, typer.Option(help="'wall', or 'cpu' (CPU time) on a busy machine.")] = "wall",
    memory_limit: Annotated[float, typer.Option(help="Memory limit per attention, in GB.")] = 8.0,
    time_limit: Annotated[float, typer.Option(help="Time limit per attention and round, in seconds.")] = 60.0,
    out: Annotated[Path | None, file_to_write("Also write everything to this JSON file.")] = None,
) -> None:
    """Time every suitable attention on your shape, add the closest quality results, and print a ranking."""
    from dataclasses import asdict

    from lln import zoo
    from lln.results import write_result
    from lln_lab.bench.zoo_cell import CLOCKS
    from lln_lab.choose.measure import Asked, disqualified, measure
    from lln_lab.choose.quality import known
    from lln_lab.choose.ranking import caveat, rank

    if width % heads:
        raise typer.BadParameter(f"the width must be a multiple of the number of heads; got {width} and {heads}")
    if clock not in CLOCKS:
        raise typer.BadParameter(f"clock must be one of {', '.join(CLOCKS)}; got {clock!r}", param_hint="--clock")
    unknown = sorted(set(member or ()) - set(zoo.names()))
    if unknown:
        raise typer.BadParameter(
            f"unknown attention {unknown[0]!r}; choose from: {', '.join(zoo.names())}", param_hint="--member"
        )
    left_out = {name: why for name in (member or zoo.names()) if (why := disqualified(name, causal))}
    candidates = [name for name in (member or zoo.names()) if name not in left_out]
    asked = Asked(length, width, heads, causal, serving, threads, rounds, clock, memory_limit, time_limit)
    console = Console()
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=rounds * len({"softmax", *candidates}))
        timings = measure(asked, candidates, lambda what: progress.update(task, description=what, advance=1))
    places = rank(asked, timings, known())
    console.print(_table(places[:top], serving))
    if len(places) > top:
        console.print(f"{len(places) - top} more; --top {len(places)} shows them.", highlight=False)
    for name, why in left_out.items():
        console.print(f"not asked: {name}, {why}", highlight=False, style="dim")
    console.print(caveat(asked, places), highlight=False)
    if out is not None:
        result = {"asked": asdict(asked), "places": [asdict(place) for place in places], "left_out": left_out}
        console.print(f"written: {write_result(out, result, seed=0)}", highlight=False)


def _table(places: list[Any], serving: bool) -> Table:
    table = Table(title="forward" if serving else "forward + backward")
    table.add_column("", justify="right")
    table.add_column("attention")
    for name in ("time", "of softmax's", "memory"):
        table.add_column(name, justify="right")
    table.add_column("why", overflow="fold")
    for number, place in enumerate(places, 1):
        own = place.timing
        measured = own.status == "ok"
        table.add_row(
            str(number),
            own.member,
            f"{1e3 * own.seconds:,.1f} ms" if measured else "",
            f"{own.ratio:.2f}" if own.ratio is not None else "",
            f"{own.peak_bytes / 1e6:,.0f} MB" if measured else "",
            place.reason,
        )
    return table
