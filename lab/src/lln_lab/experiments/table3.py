"""Table 3 and Figure 10: a vision transformer on dogs vs cats, and what fixed alpha = beta do to it.

The paper trains twelve layers of width 128 for 100 epochs with softmax, LLN+Diag and Linformer, and then LLN+Diag with fixed
alpha = beta: below the matched range accuracy falls, above it gradients grow. CIFAR-10, in patches of two pixels, is not in the
paper: ours, for a picture of 257 tokens.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure

from lln_lab import data
from lln_lab.data.task import spread
from lln_lab.experiments import scores
from lln_lab.experiments.ablation import fixed_or_matched
from lln_lab.experiments.check import Planned
from lln_lab.experiments.contestants import Contestant, each_once, lineup
from lln_lab.experiments.curves import each
from lln_lab.experiments.evidence import missing, most_frequent
from lln_lab.experiments.figure import legend, looks, panels
from lln_lab.experiments.grid import Job, Watcher, data_record, mean_and_spread, run_all
from lln_lab.experiments.models.vit import ImageClassifier, Size
from lln_lab.experiments.tasks import augmented_picture, picture
from lln_lab.experiments.training import Budget, Run, train
from lln_lab.experiments.training.watch import OnStep
from lln_lab.experiments.verdict import Verdict, judged, no_worse
from lln_lab.names import name_of

ABLATION = ("lln_diag", *(f"lln_diag:alpha={x},beta={x}" for x in (0.5, 1.0, 2.0, 3.0, 4.0)))


@dataclass(frozen=True)
class Settings:
    size: Size
    budget: Budget
    task: str = "dogs_vs_cats"
    contestants: tuple[str, ...] = ("softmax", "lln_diag", "linformer")
    seeds: int = 1
    validation_rows: int = 2000
    source: str = ""


PRESETS = {
    "cpu": Settings(
        size=Size(layers=12, width=128, heads=8, feed_forward=256, picture=64, patch=8),
        budget=Budget(
            steps=600, batch=16, learning_rate=1e-3, warmup=60, weight_decay=0.05, adam_beta2=0.999,
            log_every=20, save_every=200, evaluate_every=200, watch_every=100,
        ),
        source="the paper's depth and width, pictures of 64 x 64, a few hundred steps",
    ),
    "paper": Settings(
        size=Size(layers=12, width=128, heads=8, feed_forward=512, picture=224, patch=32),
        budget=Budget(
            steps=31_300, batch=64, learning_rate=3e-5, schedule="constant_with_warmup", weight_decay=0.0,
            adam_beta2=0.999, clip=0.0, log_every=100, evaluate_every=1_000, save_every=1_000, watch_every=1_000,
        ),
        contestants=("softmax", "lln_diag", "linformer:projected_length=64"),
        source="the paper: twelve layers, width 128, 100 epochs (A.8.2); the rest from the cats-and-dogs example of the code "
        "base that the paper names: docs/presets.md",
    ),
}  # fmt: skip

CIFAR = {
    "cpu": Settings(
        size=Size(layers=4, width=96, heads=4, feed_forward=192, picture=32, patch=2),
        budget=Budget(
            steps=2000, batch=32, learning_rate=1e-3, warmup=200, weight_decay=0.05, adam_beta2=0.999,
            log_every=50, save_every=250, evaluate_every=500,
        ),
        task="cifar10",
        contestants=("softmax", "lln_diag", "near_far"),
        source="not in the paper: a small model, whose 257 tokens leave something to attend to",
    ),
}  # fmt: skip
PRESETS_OF = {"dogs_vs_cats": PRESETS, "cifar10": CIFAR}
CLASSES = {"dogs_vs_cats": 2, "cifar10": 10}
TITLES = {"dogs_vs_cats": "ViT on dogs vs cats (Table 3)", "cifar10": "ViT on CIFAR-10"}

PAPER = {
    "title": "Table 3 of the paper: accuracy [%]",
    "columns": ["method", "dogs vs cats"],
    "rows": [["softmax", 81.37], ["lln_diag", 81.72], ["linformer", 79.89]],
}


def presets_of(task: str, *, papers: bool) -> dict[str, Settings]:
    """Those of the task. `papers`: the paper's is asked for, which not every task has."""
    if task not in PRESETS_OF:
        raise ValueError(f"there are no pictures {task!r}; choose from: {', '.join(PRESETS_OF)}")
    if papers and "paper" not in PRESETS_OF[task]:
        raise ValueError(f"the paper has no vision transformer on {task}: --preset cpu, and attentions by name")
    return PRESETS_OF[task]


def resized(settings: Settings, layers: int | None, batch: int | None) -> Settings:
    """The same with a model of other depth, or other batches. None changes nothing."""
    budget = replace(settings.budget, batch=batch or settings.budget.batch)
    budget.at_once()  # a batch that cannot be cut into its pieces is refused here, before anything is loaded
    return replace(settings, size=replace(settings.size, layers=layers or settings.size.layers), budget=budget)


def run(
    settings: Settings, folder: Path, *, source: str | None = None, watcher: Watcher | None = None
) -> dict[str, Any]:
    """All runs, and what they show. With ABLATION for contestants it is Figure 10."""
    entries = lineup(settings.contestants, settings.seeds, own_steps=True)
    task = settings.task
    options: dict[str, Any] = {} if task == "cifar10" else {"size": settings.size.picture}  # CIFAR's have one size
    rows = data.load(task, source=source, **options)
    rows = replace(rows, validation=spread(rows.validation, settings.validation_rows))
    record = {**data_record(rows), "guessing": most_frequent(rows.validation)}

    def job(contestant: Contestant, seed: int) -> Job:
        described = Run(
            task, contestant.name, seed, contestant.budget(settings.budget), contestant.label, contestant.options,
            asdict(settings.size), record, contestant.steps is not None,
        )  # fmt: skip

        def build() -> ImageClassifier:
            return ImageClassifier(
                settings.size, int(rows.classes or CLASSES[task]), contestant.name, contestant.options
            )

        def start(at: Path, on_step: OnStep | None) -> dict[str, Any]:
            return train(
                described, at, build, rows.train, rows.validation, augmented_picture,  # type: ignore[arg-type]
                make_validation=picture, metrics=scores.accuracy, on_step=on_step,
            )  # fmt: skip

        return Job(described, start)

    results = run_all([job(contestant, seed) for contestant, seed in entries], folder, watcher)
    note = "Same data order, crops, heads and budget for all; ± is the standard deviation over seeds."
    ablation = any("alpha" in contestant.options for contestant, _ in entries)
    papers = task == "dogs_vs_cats" and not ablation
    found = {
        "experiment": "fig10" if ablation else "table3",
        "title": "Fixed alpha = beta against matching (Figure 10)" if ablation else TITLES[task],
        "settings": asdict(settings),
        "data": record,
        "runs": results,
        "tables": [
            {**scores.table(results, "Accuracy [%]", note), "paper": PAPER if papers else None},
            norms(results),
            scores.minutes(results),
        ],
    }
    judge = ablation_verdicts if ablation else verdicts
    return {**found, "verdicts": [verdict.as_data() for verdict in judge(results)]}


def planned(settings: Settings) -> list[Planned]:
    """The models of a run, for a check."""

    def of(contestant: Contestant) -> Planned:
        def build(layers: int) -> ImageClassifier:
            size, classes = replace(settings.size, layers=layers), CLASSES[settings.task]
            return ImageClassifier(size, classes, contestant.name, contestant.options)

        def samples(count: int) -> dict[str, Any]:
            edge = settings.size.picture
            pixels = torch.linspace(-1, 1, 3 * edge * edge).view(1, 3, edge, edge).repeat(count, 1, 1, 1)
            return {"pixel_values": pixels, "labels": torch.arange(count) % 2}

        return Planned(settings.task, contestant.label, settings.budget, settings.size.layers, build, samples)

    return [of(contestant) for contestant in each_once(settings.contestants)]


def norms(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The gradient's norm in the second half of training: what would move the loss scale of float16."""
    rows: list[list[Any]] = []
    for label, runs in _runs_by_label(results).items():
        late = late_norms(runs)
        rows.append([label, round(sum(late) / len(late), 3), round(max(late), 3)])
    columns = ["attention", "mean", "largest"]
    return {"title": "Gradient norm, second half of training", "note": "", "columns": columns, "rows": rows}


def late_norms(runs: Sequence[dict[str, Any]]) -> list[float]:
    return [x["grad_norm"] for r in runs for x in r["history"] if "grad_norm" in x and x["step"] >= r["steps"] / 2]


def verdicts(results: Sequence[dict[str, Any]]) -> list[Verdict]:
    task = results[0]["task"]
    if task == "cifar10":
        return [
            *scores.against(results, task, "LLN+Diag scores as softmax does on CIFAR-10"),
            *scores.against(results, task, "near-far attention scores as softmax does on CIFAR-10", label="near_far"),
            *scores.ahead_of_linear(results, task),
        ]
    return [
        *scores.against(results, task, "LLN+Diag performs on a par with softmax (A.8.2)"),
        *scores.against(results, task, "LLN+Diag outperforms Linformer (A.8.2)", "linformer", ahead=True),
        *scores.ahead_of_linear(results, task),
    ]


def ablation_verdicts(results: Sequence[dict[str, Any]]) -> list[Verdict]:
    """Figure 10: smaller alpha and beta cost accuracy, larger ones make gradients grow."""
    runs: dict[float | None, list[dict[str, Any]]] = {}
    for r in fixed_or_matched(results):
        runs.setdefault(r["options"].get("alpha"), []).append(r)
    if None not in runs or len(runs) < 2:
        return []
    score = {alpha: mean_and_spread([scores.score_of(r) for r in own]) for alpha, own in runs.items()}
    fixed = sorted(alpha for alpha in runs if alpha is not None)
    low, high = fixed[0], fixed[-1]
    norm = {alpha: sum(late_norms(own)) / len(late_norms(own)) for alpha, own in runs.items()}
    spread_ = max(score[low][1], score[None][1])
    lost = no_worse(score[low][0] - score[None][0] + spread_, 0.0)
    grown = no_worse(norm[None] - norm[high], 0.0)
    lacks = missing(results, results[0]["task"], [own[0]["label"] for own in runs.values()], runs[None][0]["label"])
    accuracies = ", ".join(f"{alpha}: {100 * score[alpha][0]:.1f}" for alpha in fixed)
    gradients = ", ".join(f"{alpha}: {norm[alpha]:.2f}" for alpha in fixed)
    return [
        judged(
            f"alpha = beta = {low}, below the matched range, costs accuracy (A.8.4)", lost,
            f"accuracy at fixed alpha = beta: {accuracies}; matched: {100 * score[None][0]:.1f}",
            lacks,
        ),
        judged(
            f"alpha = beta = {high}, above the matched range, makes gradients grow (A.8.4)", grown,
            f"mean gradient norm at fixed alpha = beta: {gradients}; matched: {norm[None]:.2f}",
            lacks,
        ),
    ]  # fmt: skip


def draw(found: dict[str, Any]) -> Figure:
    if any("alpha" in r["options"] for r in found["runs"]):
        return draw_ablation(found)
    figure, (left, right) = panels(2)
    runs = _runs_by_label(found["runs"])
    look = looks(runs)
    for number, (label, own) in enumerate(runs.items()):
        mean, spread_ = mean_and_spread([100 * scores.score_of(r) for r in own])
        left.errorbar(number, mean, spread_ if len(own) > 1 else None, capsize=3, **{**look[label], "ms": 7, "ls": ""})
    seeds = max(map(len, runs.values()))
    told = f"mean of {seeds} seeds, bars: ± 1 standard deviation" if seeds > 1 else "one seed"
    left.set_xticks(range(len(runs)), [name_of(label) for label in runs], rotation=30, ha="right", fontsize=9)
    left.set(ylabel="accuracy [%]", title=f"accuracy ({told})")
    left.margins(x=0.2, y=0.2)
    each(right, found["runs"], "grad_norm")
    right.set(xlabel="step", yscale="log", title="norm of the gradient")
    legend(figure, [right])
    return figure


def draw_ablation(found: dict[str, Any]) -> Figure:
    """Accuracy and late gradients against the fixed alpha = beta; what matching reaches is a line across."""
    figure, axes = panels(2)
    runs: dict[float | None, list[dict[str, Any]]] = {}
    for r in fixed_or_matched(found["runs"]):
        runs.setdefault(r["options"].get("alpha"), []).append(r)
    colour = looks(["lln_diag"])["lln_diag"]["color"]
    fixed = sorted(alpha for alpha in runs if alpha is not None)
    measures = (
        ("accuracy [%]", lambda own: [100 * scores.score_of(r) for r in own]),
        ("mean norm of the gradient, second half", lambda own: [fmean(late_norms([r])) for r in own]),
    )
    for axis, (title, measure) in zip(axes, measures, strict=True):
        means, spreads = zip(*(mean_and_spread(measure(runs[alpha])) for alpha in fixed), strict=True)
        axis.errorbar(fixed, means, spreads, fmt="o-", color=colour, capsize=3, label="LLN+Diag, α = β fixed")
        if None in runs:
            mean, spread_ = mean_and_spread(measure(runs[None]))
            axis.axhline(mean, color=colour, ls="--", label="LLN+Diag, matched")
            axis.axhspan(mean - spread_, mean + spread_, color=colour, alpha=0.12, lw=0)
        axis.set(xlabel="α = β", title=title, xticks=fixed)
    legend(figure, axes[:1])
    return figure


def _runs_by_label(results: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        found.setdefault(result["label"], []).append(result)
    return found
