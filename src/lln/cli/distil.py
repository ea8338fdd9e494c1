"""`lln distil`: a pretrained encoder is converted and trained to follow its softmax original; printed before and after."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lln.results import write_result


def distil(
    model: Annotated[str, typer.Argument(help="Folder or name of a pretrained encoder with its tokenizer.")],
    data: Annotated[Path, typer.Option(exists=True, help="Texts to train on: a line each, or JSON lines (.xz too).")],
    out: Annotated[Path, typer.Option(help="Folder for checkpoints and the model; an interrupted run goes on.")] = Path(
        "runs/distilled"
    ),
    test_data: Annotated[Path | None, typer.Option(exists=True, help="Texts to measure on; default: --data.")] = None,
    result: Annotated[Path | None, typer.Option(help="JSON to write; default: distil.json in --out.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of four texts.")] = 900,
    end_to_end_steps: Annotated[int | None, typer.Option(help="Of them end to end; default: a third.")] = None,
    lr: Annotated[float, typer.Option(help="Learning rate of the layers; end to end takes a quarter.")] = 2e-2,
    stage: Annotated[str, typer.Option(help="layers, end_to_end or both.")] = "both",
    maps: Annotated[str, typer.Option(help="free, folded or none.")] = "free",
    texts: Annotated[int, typer.Option(min=1, help="Long texts to train on; a quarter as many short ones.")] = 480,
    test_texts: Annotated[int, typer.Option(min=3, help="Long and as many short texts to measure on.")] = 48,
    max_length: Annotated[int, typer.Option(min=8, help="Tokens a text is cut at.")] = 512,
    classify: Annotated[int, typer.Option(min=0, help="Labelled texts for a logistic regression; 0: none.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="Threads; 0 leaves it to torch.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the order of the texts.")] = 0,
) -> None:
    """Convert MODEL, distil it, and measure how close its embeddings are to the original's, and its run time."""
    try:
        from lln.hf import distil_report as report
    except ImportError as missing:
        raise typer.BadParameter(str(missing)) from None
    console = Console()
    settings = report.Settings(
        model=model, data=data, test_data=test_data or data, out=out, steps=steps,
        end_to_end_steps=end_to_end_steps, lr=lr, stage=stage, maps=None if maps == "none" else maps, texts=texts,
        test_texts=test_texts, max_length=max_length, classify=classify, threads=threads, seed=seed,
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
    for heading in ("", "long: cosine", "pairs", "short: cosine", "pairs", "time to plain LLN+Diag"):
        table.add_column(heading, justify="right" if heading else "left")
    for name in ("converted", "distilled"):
        close = [found[name][group][what] for group in ("long", "short") for what in ("cosine", "correlation_of_pairs")]
        table.add_row(name, *(f"{x:.3f}" for x in close), f"{found['time']['ratio_to_converted'][name]:.2f}")
    console.print(table)
    if "classifier" in found:
        accuracy = found["classifier"]["accuracy"]
        console.print("logistic regression: " + ", ".join(f"{name} {x:.1f} %" for name, x in accuracy.items()))
