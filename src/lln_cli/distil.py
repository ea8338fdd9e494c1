"""`lln distil`: a pretrained model is converted and trained to follow its softmax original."""

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
from lln_cli.quiet import quiet_libraries


def distil(
    model: Model,
    data: Annotated[
        Path, typer.Option(exists=True, help="Texts to train on: one per line, or JSON lines; may be .xz.")
    ],
    out: Annotated[Path, folder_to_write("Folder for checkpoints and the model; an interrupted run resumes.")] = Path(
        "runs/distilled"
    ),
    test_data: TestData = None,
    result: Annotated[Path | None, file_to_write("JSON to write; default: distil.json in --out.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps, one batch each.")] = 960,
    end_to_end_steps: Annotated[
        int | None, typer.Option(help="How many of the steps are end to end; default: two thirds.")
    ] = None,
    lr: Annotated[float, typer.Option(help="Learning rate for single layers.")] = 2e-2,
    end_to_end_lr: Annotated[
        float | None, typer.Option(help="Learning rate end to end; default: a quarter of --lr, or 3e-4 for everything.")
    ] = None,
    stage: Annotated[str, typer.Option(help="layers, end_to_end or both.")] = "both",
    maps: Annotated[str, typer.Option(help="free, folded, none, or auto (best for the attention).")] = "auto",
    learn: Annotated[
        list[str] | None,
        typer.Option(
            help="Only alpha, beta, feature_bias, mix, weights, maps; may be repeated. Or nothing, or everything."
        ),
    ] = None,
    low_rank: Annotated[
        int, typer.Option(min=0, help="Rank of low-rank updates to the projections (peft); 0: none.")
    ] = 0,
    precision: Annotated[
        str, typer.Option(help="float32, or bfloat16: faster end to end where the processor has such products.")
    ] = "float32",
    texts: Annotated[int, typer.Option(min=1, help="Long texts, and as many short ones, to train on.")] = 960,
    test_texts: Annotated[int, typer.Option(min=3, help="Long texts, and as many short ones, to measure on.")] = 48,
    max_length: MaxLength = 512,
    join: Join = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Long texts per step; three times as many short ones.")] = 4,
    attention: Attention = "lln_diag",
    block_size: BlockSize = 64,
    neighbours: Neighbours = 0,
    first_tokens: FirstTokens = 0,
    layer_texts: Annotated[int, typer.Option(min=0, help="Compare layer by layer on this many texts; 0: skip.")] = 0,
    classify: Annotated[
        int, typer.Option(min=0, help="Train a logistic regression on this many labelled texts; 0: skip.")
    ] = 0,
    threads: Threads = 0,
    seed: Annotated[int, typer.Option(help="Seed for the order of the texts.")] = 0,
) -> None:
    """Replace the softmax attention of MODEL by LLN and train it to follow the original.

    Encoders are compared with the original by their embeddings, causal models by their perplexity.
    """
    quiet_libraries()
    from lln.hf.distillation import report
    from lln.results import write_result

    console = Console()
    settings = report.Settings(
        model=model, data=data, test_data=test_data or data, out=out, steps=steps,
        end_to_end_steps=end_to_end_steps, lr=lr, end_to_end_lr=end_to_end_lr, stage=stage,
        maps=None if maps == "none" else maps,
        learn=_learn(learn), low_rank=low_rank or None, precision=precision, texts=texts, test_texts=test_texts,
        max_length=max_length, join=join, batch_size=batch_size, block_size=block_size, layer_texts=layer_texts,
        classify=classify, threads=threads, seed=seed, attention=attention, neighbours=neighbours,
        first_tokens=first_tokens,
    )  # fmt: skip
    found = report.run(settings, console.print)
    path = write_result(result or out / "distil.json", found, seed)
    if classify:
        console.print("classifying")
        found["classifier"] = report.compare_classifiers(settings)
        path = write_result(path, found, seed)
    _print(console, found)
    console.print(f"written: {path} (all figures); the model is in {out}", soft_wrap=True)


def _learn(given: list[str] | None) -> tuple[str, ...]:
    from lln.hf.distillation.distil import LEARNABLE

    if not given:
        return LEARNABLE
    return () if given == ["nothing"] else tuple(given)


def _print(console: Console, found: dict[str, Any]) -> None:
    steps = sum(found["steps"].values())
    table = Table(title=f"{found['model']} against the original, {steps} steps", title_justify="left")
    for heading in ("measure", "converted", "distilled"):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    both = [found["converted"], found["distilled"]]
    for group in found["tested_on"]:
        for name in found["converted"][group]:
            table.add_row(f"{group}: {name}".replace("_", " "), *(f"{one[group][name]:.3f}" for one in both))
    ratios = found["time"]["ratio_to_plain"]
    times = (f"{ratios[one]:.2f}" for one in ("converted", "distilled"))
    table.add_row("time, relative to the conversion with blocks of 64", *times)
    console.print(table)
    if "classifier" in found:
        accuracy = found["classifier"]["accuracy"]
        console.print("logistic regression: " + ", ".join(f"{name} {x:.1f} %" for name, x in accuracy.items()))
