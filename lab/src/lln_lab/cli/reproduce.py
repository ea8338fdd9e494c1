"""`lln reproduce fig1 | fig2 | fig5 | fig6 | fig7`: a figure of the paper as PNG and SVG, its numbers as JSON, and a verdict
for each claim the paper makes there; `fig3 | fig4`: the paper's diagrams."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lln_cli.out_options import folder_to_write

app = typer.Typer(help="Tables and figures of the paper, measured again, and open questions.", no_args_is_help=True)


class Preset(StrEnum):
    quick = "quick"
    full = "full"


PresetOption = Annotated[Preset, typer.Option(help="quick: under a minute; full: the paper's sizes.")]
OutOption = Annotated[Path, folder_to_write("Folder for the PNG and the JSON.")]
SeedOption = Annotated[int, typer.Option(help="First seed.")]
StepsOption = Annotated[int | None, typer.Option(min=1, help="Training steps; by default the preset's.")]
FOLDER = Path("results")


@app.command()
def fig2(preset: PresetOption = Preset.quick, out: OutOption = FOLDER, seed: SeedOption = 0) -> None:
    """Entropy and spectral gap of attention kernels against temperature."""
    from lln_lab.experiments import fig2 as experiment

    _finish(experiment.run(preset.value, seed), experiment.draw, out, seed)


@app.command()
def fig5(preset: PresetOption = Preset.quick, out: OutOption = FOLDER, seed: SeedOption = 0) -> None:
    """Mean and variance of softmax attention, and LLN's variance with and without moment matching."""
    from lln_lab.experiments import fig5 as experiment

    _finish(experiment.run(preset.value, seed), experiment.draw, out, seed)


@app.command()
def fig6(preset: PresetOption = Preset.quick, out: OutOption = FOLDER, seed: SeedOption = 0) -> None:
    """Variance of sums of log-normal variables, moderate and broad."""
    from lln_lab.experiments import fig6 as experiment

    _finish(experiment.run(preset.value, seed), experiment.draw, out, seed)


@app.command()
def fig7(preset: PresetOption = Preset.quick, out: OutOption = FOLDER, seed: SeedOption = 0) -> None:
    """Histograms of softmax and LLN attention, before and after moment matching."""
    from lln_lab.experiments import fig7 as experiment

    _finish(experiment.run(preset.value, seed), experiment.draw, out, seed)


@app.command("query-length")
def query_length(preset: PresetOption = Preset.quick, out: OutOption = FOLDER, seed: SeedOption = 0) -> None:
    """Open question: which attentions forget the length of the query."""
    from lln_lab.experiments import query_length as experiment

    _finish(experiment.run(preset.value, seed), experiment.draw, out, seed, "query_length")


@app.command()
def fig1(
    preset: PresetOption = Preset.quick,
    out: OutOption = FOLDER,
    seed: SeedOption = 0,
    steps: StepsOption = None,
    data: Annotated[
        Path | None, typer.Option(help="A text file or a folder of them; Python's own library by default.")
    ] = None,
) -> None:
    """Temperature, entropy and spectral gap while a small RoBERTa trains."""
    from lln_lab.experiments import fig1 as experiment

    _finish(experiment.run(preset.value, seed, steps, data), experiment.draw, out, seed)


@app.command()
def fig3(out: OutOption = FOLDER) -> None:
    """The layer of the LLN transformer, as a drawing."""
    _drawing("fig3", out)


@app.command()
def fig4(out: OutOption = FOLDER) -> None:
    """The order of products of softmax and of linear attention, as a drawing."""
    _drawing("fig4", out)


def _drawing(name: str, out: Path) -> None:
    from lln_lab.experiments import diagrams
    from lln_lab.experiments.figure import save

    drawn = save(diagrams.DRAWINGS[name], {}, out / f"{name}.png")
    Console().print(f"{drawn} and {drawn.with_suffix('.svg')} written", highlight=False, soft_wrap=True)


def _finish(
    data: dict[str, Any], draw: Callable[[dict[str, Any]], Any], out: Path, seed: int, name: str | None = None
) -> None:
    from lln.results import write_result
    from lln_lab.experiments.figure import save

    name = name or f"fig{data['figure']}"
    written = write_result(out / f"{name}.json", data, seed)
    drawn = save(draw, data, out / f"{name}.png")
    console = Console()
    for verdict in data["verdicts"]:
        colour = {"holds": "green", "does not hold": "red"}.get(verdict["outcome"], "yellow")
        console.print(f"[bold {colour}]{verdict['outcome']}[/]: {verdict['claim']}", highlight=False)
        console.print(f"  {verdict['numbers']}", highlight=False)
    console.print(f"{written} and {drawn} written", highlight=False)
