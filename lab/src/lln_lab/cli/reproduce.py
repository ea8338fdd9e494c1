"""`lln reproduce fig1 | fig2 | fig5 | fig6 | fig7`: a figure of the paper as PNG and SVG, its numbers as JSON, and a verdict
for each claim the paper makes there; `fig3 | fig4`: the paper's diagrams."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lln_cli.out_options import folder_to_write
from lln_lab.cli.summary import with_summary
from lln_lab.cli.verdicts import say

# Figures, tables, open questions, all; with the line that each has in the help. A command's own --help says more.
SUMMARY = {
    "fig1": "Temperature, entropy and spectral gap during training.",
    "fig2": "Entropy and spectral gap against temperature.",
    "fig3": "Diagram of the LLN transformer layer.",
    "fig4": "Diagram of quadratic and linear attention.",
    "fig5": "Moments of attention, with and without matching.",
    "fig6": "Variance of sums of log-normal variables.",
    "fig7": "Distribution of the weights before and after matching.",
    "fig8": "Masked-language-model pre-training (8b: --precision float16).",
    "fig9": "Alpha and beta while a vision transformer trains.",
    "fig10": "Fixed alpha = beta against matching.",
    "fig10b": "Loss scale of DeiT-tiny in float16.",
    "table1": "GLUE after pre-training.",
    "table2": "Time and memory of a RoBERTa step against length.",
    "table3": "A vision transformer on dogs vs cats, or CIFAR-10.",
    "table4": "Long Range Arena: time and memory.",
    "table5": "Long Range Arena: scores (the same runs as table4).",
    "length": "Open question: quality against length.",
    "query-length": "Open question: who ignores the length of the query?",
    "sensitivity": "Open question: score over alpha × beta.",
    "gaussian": "Open question: are queries and keys Gaussian?",
    "causal-lm": "Open question: a causal language model from scratch.",
    "imdb": "Open question: a converted encoder, fine-tuned.",
    "all": "Everything, and the report.",
}
app = typer.Typer(
    cls=with_summary(SUMMARY),
    help="Repeat the paper's tables and figures, and explore open questions.",
    no_args_is_help=True,
)


class Preset(StrEnum):
    quick = "quick"
    full = "full"


PresetOption = Annotated[Preset, typer.Option(help="quick: under a minute. full: the paper's sizes.")]
OutOption = Annotated[Path, folder_to_write("Folder for the pictures and the JSON.")]
SeedOption = Annotated[int, typer.Option(help="First seed.")]
StepsOption = Annotated[int | None, typer.Option(min=1, help="Training steps; default: the preset's.")]
FOLDER = Path("runs/figures")


@app.command()
def fig2(preset: PresetOption = Preset.quick, out: OutOption = FOLDER, seed: SeedOption = 0) -> None:
    """Figure 2: entropy and spectral gap against temperature."""
    from lln_lab.experiments import fig2 as experiment

    _finish(experiment.run(preset.value, seed), experiment.draw, out, seed)


@app.command()
def fig5(preset: PresetOption = Preset.quick, out: OutOption = FOLDER, seed: SeedOption = 0) -> None:
    """Figure 5: moments of softmax and LLN attention, with and without matching."""
    from lln_lab.experiments import fig5 as experiment

    _finish(experiment.run(preset.value, seed), experiment.draw, out, seed)


@app.command()
def fig6(preset: PresetOption = Preset.quick, out: OutOption = FOLDER, seed: SeedOption = 0) -> None:
    """Figure 6: variance of sums of log-normal variables."""
    from lln_lab.experiments import fig6 as experiment

    _finish(experiment.run(preset.value, seed), experiment.draw, out, seed)


@app.command()
def fig7(preset: PresetOption = Preset.quick, out: OutOption = FOLDER, seed: SeedOption = 0) -> None:
    """Figure 7: distribution of attention weights before and after matching."""
    from lln_lab.experiments import fig7 as experiment

    _finish(experiment.run(preset.value, seed), experiment.draw, out, seed)


@app.command("query-length")
def query_length(preset: PresetOption = Preset.quick, out: OutOption = FOLDER, seed: SeedOption = 0) -> None:
    """Open question: which attentions ignore the length of the query?"""
    from lln_lab.experiments import query_length as experiment

    _finish(experiment.run(preset.value, seed), experiment.draw, out, seed, "query_length")


@app.command()
def fig1(
    preset: PresetOption = Preset.quick,
    out: OutOption = FOLDER,
    seed: SeedOption = 0,
    steps: StepsOption = None,
    data: Annotated[
        Path | None, typer.Option(help="Text file or folder of them; default: Python's standard library.")
    ] = None,
) -> None:
    """Figure 1: temperature, entropy and spectral gap during training."""
    from lln_lab.experiments import fig1 as experiment

    _finish(experiment.run(preset.value, seed, steps, data), experiment.draw, out, seed)


@app.command()
def fig3(out: OutOption = FOLDER) -> None:
    """Figure 3: diagram of the LLN transformer layer."""
    _drawing("fig3", out)


@app.command()
def fig4(out: OutOption = FOLDER) -> None:
    """Figure 4: diagram of quadratic and linear attention."""
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
    say(data["verdicts"], console)
    console.print(f"{written} and {drawn} written", highlight=False)
