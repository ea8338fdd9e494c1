"""`lln distil`: a pretrained model is converted and trained to follow its softmax original; printed before and after."""

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
from lln_cli.out_options import file_to_write, folder_to_write


def distil(
    model: Model,
    data: Annotated[Path, typer.Option(exists=True, help="Texts to train on: a line each, or JSON lines (.xz too).")],
    out: Annotated[Path, folder_to_write("Folder for checkpoints and the model; an interrupted run goes on.")] = Path(
        "runs/distilled"
    ),
    test_data: TestData = None,
    result: Annotated[Path | None, file_to_write("JSON to write; default: distil.json in --out.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps, of one batch each.")] = 960,
    end_to_end_steps: Annotated[int | None, typer.Option(help="Of them end to end; default: two thirds.")] = None,
    lr: Annotated[float, typer.Option(help="Learning rate of the layers; end to end takes a quarter.")] = 2e-2,
    stage: Annotated[str, typer.Option(help="layers, end_to_end or both.")] = "both",
    maps: Annotated[str, typer.Option(help="free, folded, none, or auto: what the attention takes.")] = "auto",
    low_rank: Annotated[int, typer.Option(min=0, help="Rank of updates of the projections (peft); 0: none.")] = 0,
    texts: Annotated[int, typer.Option(min=1, help="Long and as many short texts to train on.")] = 960,
    test_texts: Annotated[int, typer.Option(min=3, help="Long and as many short texts to measure on.")] = 48,
    max_length: MaxLength = 512,
    join: Join = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Long texts a step; of short ones three times as many.")] = 4,
    attention: Attention = "lln_diag",
    block_size: BlockSize = 64,
    neighbours: Neighbours = 0,
    first_tokens: FirstTokens = 0,
    layer_texts: Annotated[int, typer.Option(min=0, help="Texts to measure layer by layer on; 0: not.")] = 0,
    classify: Annotated[int, typer.Option(min=0, help="Labelled texts for a logistic regression; 0: none.")] = 0,
    threads: Threads = 0,
    seed: Annotated[int, typer.Option(help="Of the order of the texts.")] = 0,
) -> None:
    """Convert MODEL, distil it, and measure its embeddings (encoders) or perplexity (causal models), and its run time."""
    from lln.hf.distillation import report
    from lln.results import write_result

    console = Console()
    settings = report.Settings(
        model=model, data=data, test_data=test_data or data, out=out, steps=steps,
        end_to_end_steps=end_to_end_steps, lr=lr, stage=stage, maps=None if maps == "none" else maps,
        low_rank=low_rank or None, texts=texts, test_texts=test_texts, max_length=max_length, join=join,
        batch_size=batch_size, block_size=block_size, layer_texts=layer_texts, classify=classify, threads=threads,
        seed=seed, attention=attention, neighbours=neighbours, first_tokens=first_tokens,
    )  # fmt: skip
    found = report.run(settings, console.print)
    path = write_result(result or out / "distil.json", found, seed)
    if classify:
        console.print("classifying")
        found["classifier"] = report.compare_classifiers(settings)
        path = write_result(path, found, seed)
    _print(console, found)
    console.print(f"written: {path}; the model is in {out}")


def _print(console: Console, found: dict[str, Any]) -> None:
    table = Table(title=f"{found['model']} against the original, {sum(found['steps'].values())} steps")
    measures = [(group, name) for group in found["tested_on"] for name in found["converted"][group]]
    headings = [f"{group}: {name}".replace("_", " ") for group, name in measures]
    for heading in ("", *headings, "time to plain LLN+Diag"):
        table.add_column(heading, justify="right" if heading else "left")
    for name in ("converted", "distilled"):
        close = (f"{found[name][group][what]:.3f}" for group, what in measures)
        table.add_row(name, *close, f"{found['time']['ratio_to_plain'][name]:.2f}")
    console.print(table)
    if "classifier" in found:
        accuracy = found["classifier"]["accuracy"]
        console.print("logistic regression: " + ", ".join(f"{name} {x:.1f} %" for name, x in accuracy.items()))
