"""`lln report RUNS… -o report.html`: results as one page."""

import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lln_cli.out_options import file_to_write


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Folders or JSON files with results.")],
    out: Annotated[Path, file_to_write("HTML file to write.", "--out", "-o")] = Path("runs/report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write all results in RUNS to one self-contained page with tables, verdicts, interactive plots and attention maps."""
    from lln_lab.report import NoResults, write

    console = Console()
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        try:
            written = write(runs, out, title)
        except FileNotFoundError as reason:
            raise typer.BadParameter(str(reason), param_hint="RUNS") from None
        except NoResults as reason:
            console.print(f"[bold red]{reason}[/]", highlight=False)
            raise typer.Exit(1) from None
        finally:
            for notice in notices:
                console.print(str(notice.message), style="yellow", highlight=False, markup=False)
    console.print(f"written: {written} ({written.stat().st_size / 1e6:.2f} MB)", highlight=False, markup=False)
