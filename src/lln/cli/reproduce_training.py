"""`lln reproduce fig8 | …`: the paper's training experiments, at the size of two cores or at the paper's."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lln.cli.reproduce import app
from lln.cli.training import (
    AttentionOption,
    DataOption,
    OutOption,
    Preset,
    PresetOption,
    SeedsOption,
    StepsOption,
    start,
)


def _chosen(settings: Any, attention: list[str] | None, seeds: int | None, steps: int | None, **more: Any) -> Any:
    """The preset with what the command line says instead."""
    changed = {"budget": settings.budget.shortened(steps), **{k: v for k, v in more.items() if v is not None}}
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
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with vocab.json and merges.txt; else a BPE is trained on the corpus.")
    ] = None,
    keep_models: Annotated[bool, typer.Option(help="Keep the trained weights, for fine-tuning.")] = False,
) -> None:
    """Pre-training: masked-language-model loss and gradients of softmax, LLN and others."""
    from lln.experiments import fig8 as experiment

    settings = _chosen(experiment.PRESETS[preset.value], attention, seeds, steps)
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

    settings = _chosen(experiment.PRESETS[preset.value], attention, seeds, steps, tasks=tuple(task) if task else None)
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
) -> None:
    """A vision transformer on dogs vs cats."""
    from lln.experiments import table3 as experiment

    settings = _chosen(experiment.PRESETS[preset.value], attention, seeds, steps)
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
) -> None:
    """The same with fixed alpha = beta against matching: accuracy and gradient norm."""
    from lln.experiments import table3 as experiment

    settings = _chosen(experiment.PRESETS[preset.value], attention or list(experiment.ABLATION), seeds, steps)
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
    task: Annotated[
        list[str] | None, typer.Option(help="text, listops, retrieval, pathfinder, image; repeat for more.")
    ] = None,
) -> None:
    """Long Range Arena: score (Table 5), time and memory (Table 4) of every method."""
    from lln.experiments import lra as experiment

    settings = _chosen(experiment.PRESETS[preset.value], attention, seeds, steps, tasks=tuple(task) if task else None)
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
    task: Annotated[list[str] | None, typer.Option(help="recall, needle; repeat for both.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Lengths with commas between; by default the preset's.")] = None,
) -> None:
    """Open question: quality against length, for associative recall and a needle in noise."""
    from lln.experiments import length as experiment

    numbers = tuple(int(x) for x in lengths.split(",")) if lengths else None
    settings = _chosen(
        experiment.PRESETS[preset.value], attention, seeds, steps, tasks=tuple(task) if task else None, lengths=numbers
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
    task: Annotated[list[str] | None, typer.Option(help="Tasks of the Long Range Arena; repeat for more.")] = None,
) -> None:
    """Open question: the score over alpha x beta on two tasks, with matching beside it."""
    from lln.experiments import lra
    from lln.experiments import sensitivity as experiment

    contestants = attention or list(experiment.CONTESTANTS)
    settings = _chosen(lra.PRESETS[preset.value], contestants, seeds, steps, tasks=tuple(task or experiment.TASKS))
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
) -> None:
    """Open question: are queries and keys Gaussian while a model trains, and what does the deviation cost?"""
    from lln.experiments import gaussian as experiment

    before = experiment.PRESETS[preset.value]
    settings = replace(
        before,
        pretraining=replace(before.pretraining, budget=before.budget.shortened(steps)),
        seeds=seeds or before.seeds,
        contestants=tuple(attention) if attention else before.contestants,
    )
    start(
        "gaussian",
        out,
        lambda folder, watcher: experiment.run(settings, folder, source=data, watcher=watcher),
        experiment.draw,
    )
