"""`lln convert`: a pretrained softmax model becomes a linear one, and is compared with the original."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.hf_options import (
    Attention,
    BlockSize,
    FirstTokens,
    Join,
    MaxLength,
    Model,
    Neighbours,
    TestData,
    Threads,
)
from lln_cli.out_options import folder_to_write
from lln_cli.quiet import quiet_libraries
from lln_cli.terminal import telling


def convert(
    model: Model,
    data: Annotated[
        Path | None, typer.Option(exists=True, help="Texts to calibrate on: one per line, or JSON lines; may be .xz.")
    ] = None,
    out: Annotated[Path, folder_to_write("Folder for the converted model and convert.json.")] = Path("runs/converted"),
    test_data: TestData = None,
    weights: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A ready-made conversion, in place of --data.")
    ] = None,
    attention: Attention = "lln_diag",
    block_size: BlockSize = 64,
    neighbours: Neighbours = 0,
    first_tokens: FirstTokens = 0,
    keep_softmax: Annotated[
        list[str] | None, typer.Option(help="A layer that keeps softmax, may be repeated; or auto.")
    ] = None,
    softmax_layers: Annotated[
        int | None, typer.Option(help="How many layers auto keeps; default: one in eight.")
    ] = None,
    texts: Annotated[int, typer.Option(min=1, help="Long texts, and as many short ones, to calibrate on.")] = 8,
    test_texts: Annotated[int, typer.Option(min=1, help="Long texts, and as many short ones, to measure on.")] = 24,
    max_length: MaxLength = 512,
    join: Join = 0,
    distil: Annotated[
        int, typer.Option(min=0, help="After converting, train this many steps to follow the original.")
    ] = 0,
    distil_texts: Annotated[
        int, typer.Option(min=1, help="Distil on this many long texts and as many short ones.")
    ] = 480,
    compare: Annotated[bool, typer.Option(help="Also measure other ways to convert.")] = False,
    memory: Annotated[bool, typer.Option(help="Also measure peak memory; takes minutes (Linux).")] = False,
    threads: Threads = 0,
    seed: Annotated[int, typer.Option(help="Seed for choosing texts.")] = 0,
) -> None:
    """Replace the softmax attention of MODEL by LLN, measure what that costs, and save the result.

    Encoders are compared with the original by their embeddings, causal models by their perplexity.
    """
    quiet_libraries()
    from lln.hf.conversion import report
    from lln.results import write_result

    console = Console()
    given = {"--attention": attention != "lln_diag", "--block-size": block_size != 64, "--neighbours": neighbours,
             "--first-tokens": first_tokens, "--keep-softmax": keep_softmax, "--softmax-layers": softmax_layers,
             "--distil": distil, "--compare": compare}  # fmt: skip
    texts_in, measured_on = _files(data, test_data, weights, [name for name, x in given.items() if x])
    settings = report.Settings(
        model=model, data=texts_in, test_data=measured_on, out=out, weights=weights, attention=attention, block_size=block_size,
        neighbours=neighbours, first_tokens=first_tokens, keep_softmax=_layers(keep_softmax or []),
        softmax_layers=softmax_layers, texts=texts, test_texts=test_texts, max_length=max_length, join=join,
        distil=distil, distil_texts=distil_texts, compare=compare, memory=memory, threads=threads, seed=seed,
    )  # fmt: skip
    with telling(console, "loading") as tell:
        result = report.run(settings, tell)
    _print(console, result)
    written = write_result(out / "convert.json", result, seed)
    console.print(f"written: {written} (all figures) and the model beside it", soft_wrap=True)


def _files(data: Path | None, test_data: Path | None, weights: Path | None, given: list[str]) -> tuple[Path, Path]:
    """The texts to calibrate and to measure on; a ready-made conversion calibrates nothing and brings its own options."""
    if weights is not None and (data is not None or given):
        wrong = "--data" if data is not None else given[0]
        raise typer.BadParameter(f"--weights holds the whole conversion: leave out {wrong}")
    if data is None and (weights is None or test_data is None):
        raise typer.BadParameter("give --data to calibrate on, or --weights and, to measure on, --test-data")
    found = [path for path in (data, test_data) if path is not None]
    return found[0], found[-1]


def _layers(given: list[str]) -> list[int] | str:
    if given == ["auto"]:
        return "auto"
    try:
        return [int(x) for x in given]
    except ValueError:
        raise typer.BadParameter(f"--keep-softmax takes layer numbers, or auto alone; got {' '.join(given)}") from None


def _print(console: Console, result: dict[str, Any]) -> None:
    table = Table(title=f"{result['model']} against the original", title_justify="left")
    shown = {"converted": result["converted"], **({"distilled": result["distilled"]} if result["distilled"] else {})}
    shown |= result["variants"]
    for heading in ("measure", *shown):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    for group, measures in result["converted"].items():
        for name in measures:
            told = f"{group}: {name}".replace("_", " ")
            table.add_row(told, *(f"{found[group][name]:.3f}" for found in shown.values()))
    console.print(table)
    memory = {row["length"]: row["bytes"] for row in result["memory"]}
    table = Table(title="Time of a forward pass" + " and its memory" * bool(memory), title_justify="left")
    for heading in ("length", "original", "converted", "ratio", *(("memory, original", "converted") if memory else ())):
        table.add_column(heading, justify="right")
    for row in result["time"]:
        taken, seconds = memory.get(row["length"]), row["seconds"]
        table.add_row(
            f"{row['length']:,}", f"{1e3 * seconds['original']:.0f} ms", f"{1e3 * seconds['converted']:.0f} ms",
            f"{row['ratio']['converted']:.2f}",
            *((f"{taken[n] / 1e6:.0f} MB" for n in ("original", "converted")) if taken else ("", "") if memory else ()),
        )  # fmt: skip
    console.print(table)
