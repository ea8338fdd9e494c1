"""`lln reproduce fig8 | …`: the paper's training experiments, at the size of two cores or at the paper's."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lln.cli import reproduce
from lln.cli.reproduce import app
from lln.cli.training import (
    AttentionOption,
    DataOption,
    OutOption,
    Preset,
    PresetOption,
    RowsOption,
    SeedsOption,
    StepsOption,
    start,
)


def _chosen(
    settings: Any,
    attention: list[str] | None,
    seeds: int | None,
    steps: int | None,
    validation_rows: int | None,
    **more: Any,
) -> Any:
    """The preset with what the command line says instead."""
    changed = {"budget": settings.budget.shortened(steps), **{k: v for k, v in more.items() if v is not None}}
    if validation_rows:
        changed["validation_rows"] = validation_rows
    if attention:
        changed["contestants"] = tuple(attention)
    if seeds:
        changed["seeds"] = seeds
    return replace(settings, **changed)


@app.command()
def fig8(
    preset: PresetOption = Preset.cpu,
    data: DataOption = None,
    out: OutOption = None,
    attention: AttentionOption = None,
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    validation_rows: RowsOption = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with vocab.json and merges.txt; else a BPE is trained on the corpus.")
    ] = None,
    keep_models: Annotated[bool, typer.Option(help="Keep the trained weights, for fine-tuning.")] = False,
) -> None:
    """Pre-training: masked-language-model loss and gradients of softmax, LLN and others."""
    from lln.experiments import fig8 as experiment

    settings = _chosen(experiment.PRESETS[preset.value], attention, seeds, steps, validation_rows)
    start(
        "fig8",
        out,
        lambda folder, watcher: experiment.run(
            settings, folder, source=data, tokenizer=tokenizer, watcher=watcher, keep_models=keep_models
        ),
        experiment.draw,
    )


@app.command()
def table1(
    preset: PresetOption = Preset.cpu,
    data: DataOption = None,
    out: OutOption = None,
    attention: AttentionOption = None,
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    validation_rows: RowsOption = None,
    task: Annotated[
        list[str] | None, typer.Option(help="sst2, qnli, mnli, qqp, cola, mrpc, rte, stsb, wnli; repeat for more.")
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="As --data, of the text for pre-training.")] = None,
    pretrained: Annotated[
        Path | None, typer.Option(help="Folder of `lln reproduce fig8 --keep-models`; else it is pre-trained first.")
    ] = None,
    pretraining_steps: Annotated[int | None, typer.Option(min=1, help="Steps of the pre-training.")] = None,
) -> None:
    """GLUE: fine-tuning after pre-training, mean and spread over seeds."""
    from lln.experiments import table1 as experiment

    settings = _chosen(
        experiment.PRESETS[preset.value], attention, seeds, steps, validation_rows, tasks=tuple(task) if task else None
    )
    before = settings.pretraining
    settings = replace(settings, pretraining=replace(before, budget=before.budget.shortened(pretraining_steps)))
    start(
        "table1",
        out,
        lambda folder, watcher: experiment.run(
            settings, folder, source=data, corpus=corpus, pretrained=pretrained, watcher=watcher
        ),
    )


@app.command()
def table3(
    preset: PresetOption = Preset.cpu,
    data: DataOption = None,
    out: OutOption = None,
    attention: AttentionOption = None,
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    validation_rows: RowsOption = None,
) -> None:
    """A vision transformer on dogs vs cats."""
    from lln.experiments import table3 as experiment

    settings = _chosen(experiment.PRESETS[preset.value], attention, seeds, steps, validation_rows)
    start(
        "table3", out, lambda folder, bars: experiment.run(settings, folder, source=data, watcher=bars), experiment.draw
    )


@app.command()
def fig10(
    preset: PresetOption = Preset.cpu,
    data: DataOption = None,
    out: OutOption = None,
    attention: AttentionOption = None,
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    validation_rows: RowsOption = None,
) -> None:
    """The same with fixed alpha = beta against matching: accuracy and gradient norm."""
    from lln.experiments import table3 as experiment

    settings = _chosen(
        experiment.PRESETS[preset.value], attention or list(experiment.ABLATION), seeds, steps, validation_rows
    )
    start(
        "fig10", out, lambda folder, bars: experiment.run(settings, folder, source=data, watcher=bars), experiment.draw
    )


def _long_range_arena(
    preset: PresetOption = Preset.cpu,
    data: DataOption = None,
    out: OutOption = None,
    attention: AttentionOption = None,
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    validation_rows: RowsOption = None,
    task: Annotated[
        list[str] | None, typer.Option(help="text, listops, retrieval, pathfinder, image; repeat for more.")
    ] = None,
) -> None:
    """Long Range Arena: score (Table 5), time and memory (Table 4) of every method."""
    from lln.experiments import lra as experiment

    settings = _chosen(
        experiment.PRESETS[preset.value], attention, seeds, steps, validation_rows, tasks=tuple(task) if task else None
    )
    start("lra", out, lambda folder, watcher: experiment.run(settings, folder, source=data, watcher=watcher))


app.command("table4")(_long_range_arena)  # one set of runs gives both tables
app.command("table5")(_long_range_arena)


@app.command()
def length(
    preset: PresetOption = Preset.cpu,
    out: OutOption = None,
    attention: AttentionOption = None,
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    validation_rows: RowsOption = None,
    task: Annotated[list[str] | None, typer.Option(help="recall, needle; repeat for both.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Lengths with commas between; by default the preset's.")] = None,
) -> None:
    """Open question: quality against length, for associative recall and a needle in noise."""
    from lln.experiments import length as experiment

    numbers = tuple(int(x) for x in lengths.split(",")) if lengths else None
    settings = _chosen(
        experiment.PRESETS[preset.value],
        attention,
        seeds,
        steps,
        validation_rows,
        tasks=tuple(task) if task else None,
        lengths=numbers,
    )
    start("length", out, lambda folder, bars: experiment.run(settings, folder, watcher=bars), experiment.draw)


@app.command()
def sensitivity(
    preset: PresetOption = Preset.cpu,
    data: DataOption = None,
    out: OutOption = None,
    attention: AttentionOption = None,
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    validation_rows: RowsOption = None,
    task: Annotated[list[str] | None, typer.Option(help="Tasks of the Long Range Arena; repeat for more.")] = None,
) -> None:
    """Open question: the score over alpha x beta on two tasks, with matching beside it."""
    from lln.experiments import lra
    from lln.experiments import sensitivity as experiment

    contestants = attention or list(experiment.CONTESTANTS)
    settings = _chosen(
        lra.PRESETS[preset.value], contestants, seeds, steps, validation_rows, tasks=tuple(task or experiment.TASKS)
    )
    start(
        "sensitivity",
        out,
        lambda folder, watcher: experiment.run(settings, folder, source=data, watcher=watcher),
        experiment.draw,
    )


@app.command()
def gaussian(
    preset: PresetOption = Preset.cpu,
    data: DataOption = None,
    out: OutOption = None,
    attention: AttentionOption = None,
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    validation_rows: RowsOption = None,
) -> None:
    """Open question: are queries and keys Gaussian while a model trains, and what does the deviation cost?"""
    from lln.experiments import gaussian as experiment

    before = experiment.PRESETS[preset.value]
    settings = replace(
        before,
        pretraining=replace(
            before.pretraining,
            budget=before.budget.shortened(steps),
            validation_rows=validation_rows or before.pretraining.validation_rows,
        ),
        seeds=seeds or before.seeds,
        contestants=tuple(attention) if attention else before.contestants,
    )
    start(
        "gaussian",
        out,
        lambda folder, watcher: experiment.run(settings, folder, source=data, watcher=watcher),
        experiment.draw,
    )


@app.command()
def table2(
    preset: PresetOption = Preset.cpu,
    out: OutOption = None,
    lengths: Annotated[str | None, typer.Option(help="Lengths with commas between; by default the preset's.")] = None,
    members: Annotated[str, typer.Option(help="Members with commas between.")] = "softmax,nystromformer,lln,lln_diag",
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; the median of the ratios counts.")] = 1,
) -> None:
    """Speed and memory of a training step of RoBERTa against the length: `lln bench zoo` in the shape of Table 2."""
    from lln.cli.bench_zoo import zoo

    chosen = lengths or {"cpu": "512,1024,2048", "paper": "512,1024,2048,4096,8192,16384"}[preset.value]
    zoo(
        out=out or Path("runs/table2"),
        name="table2",
        roberta=chosen,
        small="",
        members=members,
        layers=2 if preset is Preset.cpu else 0,
        rounds=rounds,
        steps=1,
        threads=1,
        clock="wall",
        memory_limit=12.0 if preset is Preset.cpu else 64.0,
        time_limit=300.0,
    )


@app.command("all")
def everything(
    preset: PresetOption = Preset.cpu,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with wikitext2, glue, dogs-vs-cats, imdb, cifar10; what every machine has otherwise."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of all runs and of the report.")] = Path("runs"),
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    validation_rows: RowsOption = None,
) -> None:
    """Every table and figure, one after the other, then the report. Stopped and started again, it goes on."""
    from lln.report import write

    figures = reproduce.Preset.quick if preset is Preset.cpu else reproduce.Preset.full
    for figure in (reproduce.fig2, reproduce.fig5, reproduce.fig6, reproduce.fig7):
        figure(preset=figures, out=out / "figures", seed=0)
    for figure in (reproduce.fig1, reproduce.fig9):
        figure(preset=figures, out=out / "figures", seed=0, steps=steps)
    source = str(data) if data is not None else None
    shared: dict[str, Any] = {"preset": preset, "attention": None, "seeds": seeds, "steps": steps}
    shared["validation_rows"] = validation_rows
    fig8(data=source, out=out / "fig8", tokenizer=None, keep_models=True, **shared)
    table1(
        data=source,
        corpus=source,
        out=out / "table1",
        task=None,
        pretrained=out / "fig8",
        pretraining_steps=steps,
        **shared,
    )
    table2(
        preset=preset, out=out / "table2", lengths="512" if steps else None, members="softmax,lln,lln_diag", rounds=1
    )
    table3(data=source, out=out / "table3", **shared)
    fig10(data=source, out=out / "fig10", **shared)
    _long_range_arena(data=source, out=out / "lra", task=None, **shared)
    length(out=out / "length", task=None, lengths=None, **shared)
    sensitivity(data=source, out=out / "sensitivity", task=None, **shared)
    gaussian(data=source, out=out / "gaussian", **shared)
    typer.echo(f"report {write([out], out / 'report.html')}")
