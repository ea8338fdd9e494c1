"""`lln bench instruments`: what the instruments cost, against their goals."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lln_cli.out_options import file_to_write


def instruments(
    out: Annotated[Path, file_to_write("JSON file for the result.")] = Path("runs/bench/instruments.json"),
    length: Annotated[int, typer.Option(min=256, help="Length for the spectral gap of softmax.")] = 16_384,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of three plain training steps and one with a probe.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
) -> None:
    """Time of the spectral gap of LLN at 65,536 tokens and of softmax without its matrix, and of training with a probe."""
    from lln.results import write_result
    from lln_lab.bench.instruments import run

    data = run(length, rounds, seed)
    write_result(out, data, seed)
    Console().print_json(data=data)
