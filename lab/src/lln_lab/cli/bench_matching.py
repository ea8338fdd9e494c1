"""`lln bench matching`, `matching-model` and `matching-training`: is LLN attention as concentrated as softmax attention?"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import file_to_write, folder_to_write


def matching(
    out: Annotated[Path, folder_to_write("Folder for the JSON.")] = Path("runs/bench"),
    longest: Annotated[int, typer.Option(min=256, help="Longest sequence.")] = 16_384,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per input distribution.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the timing.")] = 40,
) -> None:
    """Entropy of LLN minus softmax's on many input distributions, with the table and on a sample; time of matching."""
    from lln.results import write_result
    from lln_lab.bench import matching_inputs, matching_time

    console = Console()
    plan = matching_inputs.Plan(lengths=tuple(n for n in (256, 1024, 4096, 16384) if n <= longest), seeds=seeds)
    with console.status("measuring") as status:
        result = matching_inputs.run(plan, status.update)
        result["time"] = matching_time.run(
            tuple(n for n in (1024, 4096) if n <= longest), rounds=rounds, tell=status.update
        )
    console.print(_table(result))
    console.print(f"written: {write_result(out / 'matching_inputs.json', result)}")


def _table(result: dict[str, Any]) -> Table:
    table = Table(title="Entropy of LLN attention minus softmax's, bits")
    for heading in ("inputs", "d", "N", "softmax", "tolerated", "table", "sample"):
        table.add_column(heading, justify="left" if heading == "inputs" else "right")
    for row in result["rows"]:
        off = (f"{row[method]['difference']:+.2f}" for method in ("table", "sample"))
        table.add_row(
            row["inputs"],
            str(row["head_dim"]),
            f"{row['length']:,}",
            f"{row['softmax']:.2f}",
            f"{row['tolerated']:.2f}",
            *off,
        )
    return table


def matching_model(
    model: Annotated[str, typer.Argument(help="Folder or name of a Hugging Face model.")],
    data: Annotated[Path, typer.Option(help="Texts: one per line, or JSON lines with a field `text`; may be .xz.")],
    out: Annotated[Path, file_to_write("JSON file for the result.")] = Path("runs/bench/matching_model.json"),
    texts: Annotated[int, typer.Option(min=1, help="Number of texts.")] = 8,
    max_length: Annotated[int, typer.Option(min=16, help="Cut texts after this many tokens.")] = 512,
    join: Annotated[int, typer.Option(min=0, help="Join lines to texts of about this many characters.")] = 4000,
    gguf_file: Annotated[str | None, typer.Option(help="Name of a .gguf file in the model's folder.")] = None,
    center_keys: Annotated[bool, typer.Option(help="Subtract the mean key.")] = False,
) -> None:
    """Entropy of every layer and head of a model: softmax, and LLN with the table and on a sample."""
    from lln.hf.conversion.text_file import TextFile
    from lln.results import write_result
    from lln_lab.bench.matching_models import run

    source = TextFile(data, max_length, join=join).read()
    chosen = [text for text, _ in zip(source, range(texts), strict=False)]
    result = run(model, chosen, max_length, gguf_file, center_keys)
    Console().print_json(data=result["summary"])
    Console().print(f"written: {write_result(out, result)}")


def matching_training(
    data: Annotated[Path, typer.Option(help="Texts: one per line, or JSON lines with a field `text`; may be .xz.")],
    out: Annotated[Path, file_to_write("JSON file for the result.")] = Path("runs/bench/matching_training.json"),
    steps: Annotated[int, typer.Option(min=3, help="Training steps per attention.")] = 150,
    join: Annotated[int, typer.Option(min=0, help="Join lines to texts of about this many characters.")] = 4000,
) -> None:
    """Train a small RoBERTa: entropy of its heads, and loss with softmax and with both matching methods."""
    from lln.hf.conversion.text_file import TextFile
    from lln.results import write_result
    from lln_lab.bench.matching_training import Plan, run, shortened

    console = Console()
    plan = shortened(Plan(), steps)
    with console.status("training") as status:
        result = run(list(TextFile(data, plan.length, join=join).read()), plan, status.update)
    console.print_json(data=result["bits_per_masked_token"])
    for look in result["looks"]:
        console.print_json(data={"step": look["step"], **look["summary"]})
    console.print(f"written: {write_result(out, result, plan.seed)}")
