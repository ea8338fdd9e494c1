"""Figure 10b: the inverse loss scale of DeiT-tiny in float16, with fixed alpha = beta and with moment matching.

DeiT-tiny is a ViT of twelve layers, width 192, three heads and patches of 16. The paper does not say on which pictures it was
trained; here they are dogs and cats.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lln_lab.experiments import loss_scale, table3
from lln_lab.experiments.check import Planned
from lln_lab.experiments.curves import each
from lln_lab.experiments.figure import legend, panels
from lln_lab.experiments.grid import Watcher
from lln_lab.experiments.models.vit import Size
from lln_lab.experiments.training import Budget
from lln_lab.experiments.verdict import Verdict

MATCHED, TWO, FOUR = "lln_diag", "lln_diag:alpha=2.0,beta=2.0", "lln_diag:alpha=4.0,beta=4.0"
DEIT_TINY = Size(layers=12, width=192, heads=3, feed_forward=768, picture=224, patch=16)
PRESETS = {
    "cpu": table3.Settings(
        size=replace(DEIT_TINY, picture=64),
        budget=Budget(
            steps=200, batch=4, learning_rate=5e-4, warmup=20, schedule="cosine", weight_decay=0.05, adam_beta2=0.999,
            clip=0.0, precision="float16", loss_scale_window=10, log_every=5, save_every=50,
        ),
        contestants=(MATCHED, TWO, FOUR),
        validation_rows=200,
        source="DeiT-tiny on pictures of 64 x 64, a few hundred steps, and a scale that doubles every ten calm steps",
    ),
    "paper": table3.Settings(
        size=DEIT_TINY,
        budget=Budget(
            steps=5_860, batch=1024, learning_rate=1e-3, warmup=98, schedule="cosine", weight_decay=0.05,
            adam_beta2=0.999, clip=0.0, precision="float16", log_every=10, evaluate_every=1_000, save_every=500,
        ),
        contestants=(MATCHED, TWO, FOUR),
        source="DeiT's code for DeiT-tiny: docs/presets.md",
    ),
}  # fmt: skip


def run(
    settings: table3.Settings, folder: Path, *, source: str | None = None, watcher: Watcher | None = None
) -> dict[str, Any]:
    if settings.budget.precision != "float16":
        raise ValueError(f"only float16 has a loss scale; got --precision {settings.budget.precision}")
    found = table3.run(settings, folder, source=source, watcher=watcher)
    found |= {"experiment": "fig10b", "title": "Loss scale of DeiT-tiny in float16 (Figure 10b)"}
    found["tables"] = [loss_scale.table(found["runs"]), found["tables"][0]]
    return {**found, "verdicts": [verdict.as_data() for verdict in verdicts(found["runs"])]}


def planned(settings: table3.Settings) -> list[Planned]:
    return table3.planned(settings)


def verdicts(results: list[dict[str, Any]]) -> list[Verdict]:
    by_alpha = {r["options"].get("alpha"): r["label"] for r in results}
    if not {None, 2.0, 4.0} <= set(by_alpha):
        return []
    claim = "at alpha = beta = 4 the inverse loss scale is larger than at 2 (A.8.4, Figure 10b)"
    matched = "with matching the inverse loss scale is no larger than at alpha = beta = 4 (A.8.4, Figure 10b)"
    task, learner = "dogs_vs_cats", by_alpha[None]
    return [
        *loss_scale.no_larger(results, task, by_alpha[4.0], by_alpha[2.0], claim, learner, larger=True),
        *loss_scale.no_larger(results, task, by_alpha[None], by_alpha[4.0], matched, learner),
    ]


def draw(found: dict[str, Any]) -> Figure:
    figure, (scale, loss) = panels(2)
    each(scale, found["runs"], loss_scale.KEY)
    scale.set(xlabel="step", title="inverse loss scale")
    scale.set_yscale("log", base=2)
    each(loss, found["runs"], "loss")
    loss.set(xlabel="step", title="training loss")
    legend(figure, [scale])
    return figure
