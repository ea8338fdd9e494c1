"""`lln reproduce fig8 | …`: the paper's training experiments, at the size of two cores or at the paper's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lln_cli.quiet import quiet_libraries
from lln_cli.terminal import whole_numbers
from lln_lab.cli import reproduce
from lln_lab.cli.reproduce import app
from lln_lab.cli.training import (
    PAPERS,
    Choice,
    OutOption,
    Preset,
    PresetOption,
    check,
    in_words,
    start,
    training_command,
)

TokenizerOption = Annotated[
    Path | None, typer.Option(help="Folder with vocab.json and merges.txt; default: train a BPE on the corpus.")
]
KeepOption = Annotated[bool, typer.Option(help="Keep the trained weights for fine-tuning.")]
GlueOption = Annotated[
    list[str] | None, typer.Option(help="sst2, qnli, mnli, qqp, cola, mrpc, rte, stsb or wnli; may be repeated.")
]
CorpusOption = Annotated[str | None, typer.Option(help="Like --data, for the pre-training text.")]
PretrainedOption = Annotated[
    Path | None, typer.Option(help="Folder of `lln reproduce fig8 --keep-models`; default: pre-train first.")
]
PretrainingStepsOption = Annotated[int | None, typer.Option(min=1, help="Pre-training steps.")]
PretrainingPiecesOption = Annotated[int | None, typer.Option(min=1, help="Like --accumulate, for pre-training.")]
ArenaOption = Annotated[
    list[str] | None, typer.Option(help="text, listops, retrieval, pathfinder or image; may be repeated.")
]
PicturesOption = Annotated[str, typer.Option(help="dogs_vs_cats or cifar10.")]
LayersOption = Annotated[int | None, typer.Option(min=1, help="Layers of the model; default: the preset's.")]
BatchOption = Annotated[int | None, typer.Option(min=1, help="Pictures of a step; default: the preset's.")]
LengthOption = Annotated[int | None, typer.Option(min=16, help="Tokens of a text, a list or an article.")]
ModelOption = Annotated[
    str | None,
    typer.Option(help="A BERT encoder: a folder in Hugging Face's layout (all-MiniLM-L6-v2), or a name on the hub."),
]
RecallOption = Annotated[list[str] | None, typer.Option(help="recall or needle; may be repeated.")]
LengthsOption = Annotated[str | None, typer.Option(help="Lengths, separated by commas; default: the preset's.")]


def _run(name: str, choice: Choice, experiment: Any, settings: Any, **more: Any) -> None:
    """The experiment's runs under progress bars; its JSON, tables and plot. With --check, what they would cost."""
    if choice.check:
        check(lambda: experiment.planned(settings))
        return

    def run(folder: Path, bars: Any) -> dict[str, Any]:
        found: dict[str, Any] = experiment.run(settings, folder, source=choice.data, watcher=bars, **more)
        return found

    start(name, choice, run, getattr(experiment, "draw", None))


def fig8(choice: Choice, *, tokenizer: TokenizerOption = None, keep_models: KeepOption = False) -> None:
    """Figure 8: masked-language-model pre-training with softmax, LLN and others."""
    from lln_lab.experiments import fig8 as experiment

    settings = choice.settings(experiment.PRESETS)
    _run("fig8", choice, experiment, settings, tokenizer=tokenizer, keep_models=keep_models, by_context=True)


def table1(
    choice: Choice,
    *,
    task: GlueOption = None,
    corpus: CorpusOption = None,
    pretrained: PretrainedOption = None,
    pretraining_steps: PretrainingStepsOption = None,
    pretraining_accumulate: PretrainingPiecesOption = None,
    tokenizer: TokenizerOption = None,
    model: ModelOption = None,
) -> None:
    """Table 1: GLUE after pre-training, mean and spread over seeds. With --model, after somebody else's."""
    if model is not None:
        ours = (corpus, pretrained, pretraining_steps, pretraining_accumulate, tokenizer)
        if any(option is not None for option in ours):
            raise ValueError("--model brings its own pre-training and tokenizer: options of ours do not go with it")
        _table1_encoder(choice, model, tuple(task or ()))
        return
    from lln_lab.experiments import table1 as experiment

    settings = choice.settings(experiment.PRESETS, tasks=tuple(task or ()))
    before = settings.pretraining
    earlier = replace(choice, steps=pretraining_steps, accumulate=pretraining_accumulate)
    pretraining = replace(
        before,
        budget=earlier.budget(before.budget),
        validation_rows=choice.validation_rows or before.validation_rows,
    )
    settings = replace(settings, pretraining=pretraining)
    _run("table1", choice, experiment, settings, corpus=corpus, pretrained=pretrained, tokenizer=tokenizer)


def _table1_encoder(choice: Choice, model: str, tasks: tuple[str, ...]) -> None:
    quiet_libraries()  # who loads an encoder without its pooler is told so, at length
    from lln_lab.experiments import table1_encoder as experiment

    if choice.preset is Preset.paper or PAPERS in (choice.attention or ()):
        raise ValueError("the paper has no pretrained encoder of others: --preset cpu, and attentions by name")
    settings = choice.settings(experiment.PRESETS, tasks=tasks)
    if choice.check:
        check(lambda: experiment.planned(settings, model))
        return
    _run("table1", choice, experiment, settings, model=model)


def table3(
    choice: Choice, *, task: PicturesOption = "dogs_vs_cats", layers: LayersOption = None, batch: BatchOption = None
) -> None:
    """Table 3: a vision transformer on dogs vs cats; CIFAR-10 is not in the paper."""
    _vision("table3", choice, task=task, layers=layers, batch=batch)


def fig10(choice: Choice) -> None:
    """Figure 10: the vision transformer with fixed alpha = beta and with matching."""
    from lln_lab.experiments.table3 import ABLATION

    _vision("fig10", choice, ABLATION)


def _vision(
    name: str,
    choice: Choice,
    contestants: tuple[str, ...] = (),
    task: str = "dogs_vs_cats",
    layers: int | None = None,
    batch: int | None = None,
) -> None:
    from lln_lab.experiments import table3 as experiment

    papers = choice.preset is Preset.paper or PAPERS in (choice.attention or ())
    settings = choice.settings(experiment.presets_of(task, papers=papers), contestants)
    settings = experiment.resized(settings, layers, batch)
    _run(name, choice, experiment, settings)


def fig9(choice: Choice) -> None:
    """Figure 9: alpha and beta while the vision transformer trains."""
    from lln_lab.experiments import fig9 as experiment

    _run("fig9", choice, experiment, choice.settings(experiment.PRESETS))


def fig10b(choice: Choice) -> None:
    """Figure 10b: float16 loss scale of DeiT-tiny, with fixed alpha = beta and with matching."""
    from lln_lab.experiments import fig10b as experiment

    _run("fig10b", choice, experiment, choice.settings(experiment.PRESETS))


def long_range_arena(choice: Choice, *, task: ArenaOption = None, length: LengthOption = None) -> None:
    """Tables 4 and 5: Long Range Arena scores, time and memory."""
    from lln_lab.experiments import lra as experiment

    settings = choice.settings(experiment.PRESETS, tasks=tuple(task or ()))
    settings = experiment.of_length(settings, length) if length else settings
    _run("lra", choice, experiment, settings)


def length(choice: Choice, *, task: RecallOption = None, lengths: LengthsOption = None) -> None:
    """Open question: quality against length, for recall and needle tasks."""
    from lln_lab.experiments import length as experiment

    numbers = whole_numbers(lengths) if lengths else ()
    settings = choice.settings(experiment.PRESETS, tasks=tuple(task or ()), lengths=numbers)
    _run("length", choice, experiment, settings)


def sensitivity(choice: Choice, *, task: ArenaOption = None) -> None:
    """Open question: score over alpha × beta on two tasks, compared with matching."""
    from lln_lab.experiments import lra
    from lln_lab.experiments import sensitivity as experiment

    settings = choice.settings(lra.PRESETS, experiment.CONTESTANTS, tasks=tuple(task or experiment.TASKS))
    _run("sensitivity", choice, experiment, settings)


def gaussian(choice: Choice) -> None:
    """Open question: are queries and keys Gaussian during training, and does it matter?"""
    from lln_lab.experiments import gaussian as experiment

    pretraining = {name: preset.pretraining for name, preset in experiment.PRESETS.items()}
    chosen = choice.settings(pretraining, experiment.Settings.contestants)
    before = experiment.PRESETS[choice.preset.value]
    settings = replace(before, pretraining=chosen, contestants=chosen.contestants, seeds=chosen.seeds)
    _run("gaussian", choice, experiment, settings)


def causal_lm(choice: Choice, *, tokenizer: TokenizerOption = None) -> None:
    """Open question: a causal language model from scratch, with softmax, LLN and others."""
    from lln_lab.experiments import causal_lm as experiment

    _run(
        "causal_lm",
        choice,
        experiment,
        choice.settings(experiment.PRESETS, experiment.CONTESTANTS),
        tokenizer=tokenizer,
    )


def imdb(choice: Choice, *, model: ModelOption = None, length: LengthOption = None) -> None:
    """Open question: a pretrained encoder, converted and fine-tuned on long reviews, against its softmax self."""
    quiet_libraries()  # who loads an encoder without its pooler is told so, at length
    from lln_lab.experiments import imdb as experiment

    settings = choice.settings(experiment.PRESETS, length=length)
    if choice.check:
        check(lambda: experiment.planned(settings, model))
        return
    _run("imdb", choice, experiment, settings, model=model)


COMMANDS: dict[str, Callable[..., None]] = {
    "fig8": fig8,
    "table1": table1,
    "table3": table3,
    "fig9": fig9,
    "fig10": fig10,
    "fig10b": fig10b,
    "table4": long_range_arena,  # one set of runs gives both tables
    "table5": long_range_arena,
    "length": length,
    "sensitivity": sensitivity,
    "gaussian": gaussian,
    "causal-lm": causal_lm,
    "imdb": imdb,
}
for _name, _function in COMMANDS.items():
    app.command(_name)(training_command(_function))


@app.command()
def table2(
    preset: PresetOption = Preset.cpu,
    out: OutOption = None,
    lengths: LengthsOption = None,
    members: Annotated[
        str, typer.Option(help="Attentions, separated by commas.")
    ] = "softmax,nystromformer,lln,lln_diag",
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; the median of the ratios counts.")] = 1,
    clock: Annotated[str, typer.Option(help="'wall', or 'cpu' (CPU time) on a busy machine.")] = "wall",
) -> None:
    """Table 2: time and memory of a RoBERTa training step against length."""
    from lln_lab.cli.bench_zoo import zoo

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
        clock=clock,
        memory_limit=12.0 if preset is Preset.cpu else 64.0,
        time_limit=300.0,
    )


def everything(choice: Choice) -> None:
    """Every table and figure, then the report. Resumes if interrupted. Not part of it: imdb, which needs a model.

    --data is a folder that contains wikitext2, glue, dogs-vs-cats, imdb and cifar10. Retrieval of Long Range Arena also needs
    AAN's tsv files.
    """
    from lln_lab.report import write

    if choice.known is not None:
        raise ValueError(f"--known is for one experiment, whose runs {choice.known} holds; here all of them run")
    choice = replace(choice, out=choice.out or Path("runs"))
    out, steps = choice.out, choice.steps
    assert out is not None
    arena = None if choice.check else _arena_tasks(choice)  # what is missing is said now, not hours later
    if not choice.check:
        _measured(choice, out)
    fig8(choice.under("fig8"), keep_models=True)
    table1(
        choice.under("table1"),
        corpus=choice.data,
        pretrained=out / "fig8",
        pretraining_steps=steps,
        pretraining_accumulate=choice.accumulate,
    )
    table3(choice.under("table3"))
    fig9(replace(choice.under("fig9"), attention=None))  # LLN+Diag alone has an alpha to look at
    fig10(replace(choice.under("fig10"), attention=None))  # compares fixed alpha and beta, as fig10b and sensitivity do
    fig10b(replace(choice.under("fig10b"), attention=None, precision=None))
    long_range_arena(choice.under("lra"), task=arena)
    length(replace(choice.under("length"), data=None))  # generated
    sensitivity(replace(choice.under("sensitivity"), attention=None))
    gaussian(choice.under("gaussian"))
    causal_lm(replace(choice.under("causal_lm"), attention=None))  # not every attention has a causal form
    if not choice.check:
        typer.echo(f"report {write([out], out / 'report.html')}")


def _measured(choice: Choice, out: Path) -> None:
    """The figures and the table that train nothing, or next to nothing."""
    figures = reproduce.Preset.quick if choice.preset is Preset.cpu else reproduce.Preset.full
    for drawing in (reproduce.fig3, reproduce.fig4):
        drawing(out=out / "figures")
    for figure in (reproduce.fig2, reproduce.fig5, reproduce.fig6, reproduce.fig7):
        figure(preset=figures, out=out / "figures", seed=0)
    reproduce.fig1(preset=figures, out=out / "figures", seed=0, steps=choice.steps)
    table2(
        preset=choice.preset,
        out=out / "table2",
        lengths="512" if choice.steps else None,
        members="softmax,lln,lln_diag",
        rounds=1,
        clock="wall",
    )


def _arena_tasks(choice: Choice) -> list[str]:
    """The tasks of Long Range Arena whose data is there. The data of the other tables has to be."""
    from lln_lab import data
    from lln_lab.experiments import lra, table1

    def check() -> list[str]:
        glue = (f"glue/{task}" for task in table1.PRESETS[choice.preset.value].tasks)
        for name in ("wikitext", *glue, "dogs_vs_cats"):
            data.load(name, source=choice.data)
        settings, found = lra.PRESETS[choice.preset.value], []
        for task in settings.tasks:
            try:
                lra.load(task, settings, choice.data)
                found.append(task)
            except data.MissingData as missing:
                typer.echo(f"left out: {missing}")
        return found

    return in_words(check)


app.command("all")(training_command(everything))
