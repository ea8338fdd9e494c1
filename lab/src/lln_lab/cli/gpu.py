"""`lln gpu`: the GPU kernels on a machine without a GPU."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lln_cli.out_options import folder_to_write

app = typer.Typer(help="The GPU kernels, compiled for cards that are not here.", no_args_is_help=True)

Kept = Annotated[
    Path, typer.Option("--cache", help="Folder of what is compiled already; a run that was stopped goes on.")
]
Targets = Annotated[list[str] | None, typer.Option("--target", help="sm_80, sm_90, sm_100 or gfx942; all by default.")]
Sizes = Annotated[list[int] | None, typer.Option("--size", help="Head size; 64, 128, 256 (and 32) by default.")]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", help="bfloat16 or float32; both by default.")]


@app.command()
def sheet(
    out: Annotated[Path, folder_to_write("Folder for the JSON.")] = Path("runs/gpu"),
    cache: Kept = Path("runs/gpu/compiled"),
    target: Targets = None,
    size: Sizes = None,
    dtype: Dtypes = None,
    peers: Annotated[bool, typer.Option(help="Compile the kernels of fla-core as well, if it is installed.")] = True,
    known: Annotated[
        Path | None, typer.Option(help="An earlier sheet: kernels that have not changed since are not compiled again.")
    ] = None,
    compiling: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile what is not known yet, or leave it out.")
    ] = True,
) -> None:
    """Compile every kernel for A100, H100, B200 and MI300X; registers, spills, shared memory, bytes, predicted times."""
    _need_triton()
    from lln.results import write_result
    from lln_lab.gpu.cache import Cache
    from lln_lab.gpu.sheet import Plan, rows_by_key, run

    plan = Plan(
        tuple(_chosen("--target", target, Plan.targets)), tuple(_chosen("--size", size, Plan.sizes)),
        tuple(_chosen("--dtype", dtype, Plan.dtypes)), peers, compiling,
    )  # fmt: skip
    console = Console()
    with _progress(console) as progress:
        task = progress.add_task("laying out", total=None)

        def told(what: str, total: int) -> None:
            progress.update(task, description=what, total=total, advance=1)

        result = run(plan, Cache(cache), told, rows_by_key(known))
    spilling = [row for row in result["kernels"] if not row.get("fits")]
    console.print(f"{len(result['kernels'])} kernels compiled, {len(spilling)} of them spill or do not fit")
    console.print(f"written: {write_result(out / 'gpu_sheet.json', result)}")


@app.command()
def tiles(
    cache: Kept = Path("runs/gpu/compiled"),
    target: Targets = None,
    size: Sizes = None,
    dtype: Dtypes = None,
    again: Annotated[bool, typer.Option(help="Search entries that the table has already.")] = False,
) -> None:
    """Search tile sizes that compile without spilling; they go to the library's table, tiles.json, one by one."""
    _need_triton()
    from lln.ops.gpu import tiles as table
    from lln_lab.gpu.cache import Cache
    from lln_lab.gpu.launches import DTYPES
    from lln_lab.gpu.tiles import search, wanted, write

    chosen = (
        _chosen("--target", target, table.TARGETS), _chosen("--size", size, table.SIZES),
        _chosen("--dtype", dtype, ("bfloat16", "float32")),
    )  # fmt: skip
    entries = list(wanted(*chosen))
    console = Console()
    with _progress(console) as progress:
        task = progress.add_task("searching", total=len(entries))
        for entry, card, dim, kind in entries:
            if again or table.key(entry, dim, DTYPES[kind]) not in table.read_table()[card]:
                found = search(entry, card, dim, kind, Cache(cache), lambda x: progress.update(task, description=x))
                write(entry, card, dim, kind, found)
                told = "none fits" if found is None else f"{found['rows']} rows, {found['warps']} warps"
                console.print(f"{card} {entry} {dim} {kind}: {told}")
            progress.advance(task)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def _chosen(option: str, given: list | None, all_of_them: tuple) -> list:
    wrong = [x for x in given or () if x not in all_of_them]
    if wrong:
        raise typer.BadParameter(
            f"unknown value {wrong[0]!r}; choose from: {', '.join(map(str, all_of_them))}", param_hint=option
        )
    return list(given or all_of_them)


def _need_triton() -> None:
    from importlib.util import find_spec

    if find_spec("triton") is None:
        typer.echo(
            "triton is not installed, and without it there is nothing to compile: pip install 'lln-attention[gpu]'",
            err=True,
        )
        raise typer.Exit(2)
