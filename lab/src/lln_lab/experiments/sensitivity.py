"""How sensitive is LLN to alpha and beta? A map of the score over alpha x beta on two tasks, with matching beside it."""

import math
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lln_lab.experiments import lra, scores
from lln_lab.experiments.ablation import fixed_or_matched
from lln_lab.experiments.check import Planned
from lln_lab.experiments.evidence import missing
from lln_lab.experiments.figure import panels
from lln_lab.experiments.grid import Watcher, by_label, mean_and_spread
from lln_lab.experiments.verdict import Verdict, judged, no_worse

VALUES = (0.5, 1.0, 2.0, 4.0)
TASKS = ("listops", "text")
CONTESTANTS = ("lln", *(f"lln:alpha={a},beta={b}" for a in VALUES for b in VALUES))


def run(
    settings: lra.Settings, folder: Path, *, source: str | None = None, watcher: Watcher | None = None
) -> dict[str, Any]:
    """`settings.contestants` are those of CONTESTANTS unless the caller chose others."""
    found = lra.run(settings, folder, source=source, watcher=watcher)
    found["experiment"], found["title"] = "sensitivity", "Sensitivity to alpha and beta"
    found["tables"] = [grid(found["runs"], task) for task in settings.tasks]
    found["verdicts"] = [verdict.as_data() for task in settings.tasks for verdict in verdicts(found["runs"], task)]
    return found


def planned(settings: lra.Settings) -> list[Planned]:
    return lra.planned(settings)


def grid(results: list[dict[str, Any]], task: str) -> dict[str, Any]:
    """Score [%] over alpha (down) and beta (across); matching in the title."""
    fixed, matched = _scores(results, task)
    alphas, betas = sorted({a for a, _ in fixed}), sorted({b for _, b in fixed})
    rows = [[f"α = {a}", *(round(100 * fixed[a, b], 1) if (a, b) in fixed else None for b in betas)] for a in alphas]
    told = "" if matched is None else f"; matched to each sample: {100 * matched:.1f}"
    return {
        "title": f"{task}: score [%] with fixed α and β{told}",
        "note": "",
        "columns": ["", *(f"β = {b}" for b in betas)],
        "rows": rows,
    }


def verdicts(results: list[dict[str, Any]], task: str) -> list[Verdict]:
    fixed, matched = _scores(results, task)
    if matched is None or not fixed:
        return []
    compared = [r for r in fixed_or_matched(results) if r["task"] == task]
    runs = by_label([{**r, "evaluation": {"score": scores.score_of(r)}} for r in compared], "score").values()
    spread = max(mean_and_spread(own)[1] for own in runs)
    best = max(fixed, key=lambda pair: fixed[pair])
    numbers = (
        f"matched {100 * matched:.1f} %; best fixed {100 * fixed[best]:.1f} % at alpha = {best[0]}, beta = {best[1]}; "
        f"worst fixed {100 * min(fixed.values()):.1f} %; {sum(x > matched for x in fixed.values())} of {len(fixed)} are better"
    )
    learner = next(r["label"] for r in compared if "alpha" not in r["options"])
    lacks = missing(results, task, list(dict.fromkeys(r["label"] for r in compared)), learner)
    claim = f"matching is as good as any fixed alpha and beta on {task}"
    return [judged(claim, no_worse(fixed[best] - matched, spread), numbers, lacks)]


def _scores(results: list[dict[str, Any]], task: str) -> tuple[dict[tuple[float, float], float], float | None]:
    fixed: dict[tuple[float, float], list[float]] = {}
    matched: list[float] = []
    for r in fixed_or_matched(results):
        if r["task"] == task:
            given = r["options"]
            into = fixed.setdefault((given["alpha"], given["beta"]), []) if "alpha" in given else matched
            into.append(scores.score_of(r))
    means = {pair: mean_and_spread(values)[0] for pair, values in fixed.items()}
    return means, mean_and_spread(matched)[0] if matched else None


def draw(found: dict[str, Any]) -> Figure:
    tasks = list(dict.fromkeys(r["task"] for r in found["runs"]))
    figure, axes = panels(len(tasks))
    for axis, task in zip(axes, tasks, strict=True):
        fixed, matched = _scores(found["runs"], task)
        alphas, betas = sorted({a for a, _ in fixed}), sorted({b for _, b in fixed})
        image = axis.imshow(
            [[100 * fixed.get((a, b), math.nan) for b in betas] for a in alphas], origin="lower", cmap="viridis"
        )
        axis.set_xticks(range(len(betas)), [str(b) for b in betas])
        axis.set_yticks(range(len(alphas)), [str(a) for a in alphas])
        told = "" if matched is None else f", matched {100 * matched:.1f}"
        axis.set(xlabel="β", ylabel="α", title=f"{task} [%]{told}")
        axis.grid(False)
        figure.colorbar(image, ax=axis)
    return figure
