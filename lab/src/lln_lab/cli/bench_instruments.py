"""`lln bench instruments`: what the instruments cost, against their goals."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lln_cli.out_options import file_to_write


def instruments(
    out: Annotated[Path, file_to_write("Where the result goes (JSON).")] = Path("results/instruments.json"),
    length: Annotated[
        int, typer.Option(min=256, help="Length of the softmax attention measured by products.")
    ] = 16_384,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of three plain training steps and a watched one.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
) -> None:
    """Time of LLN's spectral gap at 65,536 tokens, of softmax's without its matrix, and of training with a probe."""
    from lln.results import write_result
    from lln_lab.bench.instruments import run

    data = run(length, rounds, seed)
    write_result(out, data, seed)
    Console().print_json(data=data)
