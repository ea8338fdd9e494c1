"""`lln bench vit`: accuracy of a vision transformer before and after its conversion."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lln_cli.out_options import folder_to_write


def vit(
    out: Annotated[Path, folder_to_write("Folder for the JSON.")] = Path("runs/bench"),
    data: Annotated[Path | None, typer.Option(help="Folder of CIFAR-10; default: scikit-learn's digits.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Models to train, each with its own split.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training with softmax.")] = 600,
    distil_steps: Annotated[int, typer.Option(min=3, help="Steps of distillation.")] = 200,
    weight_steps: Annotated[int, typer.Option(min=0, help="Then so many steps in which all weights learn.")] = 0,
    attention: Annotated[list[str] | None, typer.Option(help="What to convert to; may be repeated.")] = None,
    neighbours: Annotated[
        list[int] | None, typer.Option(min=0, help="Near-far: near blocks on each side; may be repeated. Default: 0.")
    ] = None,
    width: Annotated[int, typer.Option(min=8, help="Of the model; heads are of 16.")] = 64,
    layers: Annotated[int, typer.Option(min=1, help="Of the model.")] = 3,
) -> None:
    """Train a plain torch vision transformer on digits or CIFAR-10, convert it, distil it; accuracy at each stage."""
    from lln.results import write_result
    from lln_lab.bench.convert_vit import Plan, run

    console = Console()
    chosen: dict[str, Any] = {"attentions": tuple(attention)} if attention else {}
    if neighbours:
        if attention and "lln_near_far" not in attention:
            raise typer.BadParameter(
                f"only lln_near_far has neighbours, and --attention is {', '.join(attention)}",
                param_hint="--neighbours",
            )
        chosen["neighbours"] = tuple(neighbours)
    plan = Plan(
        width=width, heads=width // 16, layers=layers, seeds=tuple(range(seeds)), steps=steps, distil_steps=distil_steps,
        weight_steps=weight_steps, flip=data is not None, **chosen,
    )  # fmt: skip
    result = run(plan, lambda line: console.print(line, highlight=False), data, out)
    table = Table(title="Accuracy, %")
    columns = ("softmax", "converted", "distilled", "all weights")
    for heading in ("seed", "attention", "neighbours", *columns):
        table.add_column(heading, justify="left" if heading == "attention" else "right")
    for row in result["rows"]:
        stages = (f"{row[name]:.1f}" if name in row else "" for name in columns)
        table.add_row(str(row["seed"]), row["attention"], str(row.get("neighbours", "")), *stages)
    console.print(table)
    name = "vit" if data is None else "vit_pictures"
    console.print(f"written: {write_result(out / f'{name}.json', result, seeds)}")
