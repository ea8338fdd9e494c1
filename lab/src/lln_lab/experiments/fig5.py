"""Figure 5: (a) mean and variance of log P of softmax against Proposition 3.1; (b) LLN's variance, matched and not."""

import math
from typing import Any

import torch

from lln.instruments import LLNMatrix, SoftmaxMatrix, lognormality
from lln.matching import match_moments
from lln_lab.experiments.inputs import gaussian, lln_paper, lln_unmatched
from lln_lab.experiments.verdict import FAILS, HOLDS, Verdict, outcome_over, range_of

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"length": 256, "dim": 64, "seeds": 3},
    "full": {"length": 1024, "dim": 64, "seeds": 4},
}
SCORE_VARIANCES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
CLOSE = (
    0.05  # a prediction holds when it is off by less than this share (of the variance) or this many nats (of the mean)
)


def run(preset: str = "quick", seed: int = 0) -> dict[str, Any]:
    sizes = PRESETS[preset]
    series: dict[str, list[float]] = {
        name: []
        for name in (
            "mean", "variance", "predicted_mean", "predicted_variance", "corrected_variance",
            "lln_paper", "lln_unmatched", "lln_variance_matched",
        )
    }  # fmt: skip
    for score_variance in SCORE_VARIANCES:
        rows = []
        for number in range(sizes["seeds"]):
            q, k = gaussian(sizes["length"], sizes["dim"], score_variance, seed + number)
            softmax = lognormality(SoftmaxMatrix(q, k), quantile_entries=1)
            matched = LLNMatrix(q, k, *match_moments(q, k, target="variance"))
            lln = [
                lognormality(a, quantile_entries=1).variance.item()
                for a in (lln_paper(q, k), lln_unmatched(q, k), matched)
            ]
            rows.append([softmax.mean.item(), softmax.variance.item(), *lln])
        mean, variance, *lln = torch.tensor(rows, dtype=torch.float64).mean(0).tolist()
        values = {
            "mean": mean,
            "variance": variance,
            "predicted_mean": -math.log(sizes["length"]) - score_variance / 2,
            "predicted_variance": score_variance,
            "corrected_variance": score_variance + score_variance**2 / (2 * sizes["dim"]),
            **dict(zip(("lln_paper", "lln_unmatched", "lln_variance_matched"), lln, strict=True)),
        }
        for name, value in values.items():
            series[name].append(value)
    data = {"figure": 5, "preset": preset, **sizes, "score_variance": list(SCORE_VARIANCES), "series": series}
    return {**data, "verdicts": [verdict.as_data() for verdict in verdicts(data)]}


def verdicts(data: dict[str, Any]) -> list[Verdict]:
    series, at = data["series"], data["score_variance"]
    mean_off = [m - p for m, p in zip(series["mean"], series["predicted_mean"], strict=True)]

    def off(name: str, reference: str = "variance") -> list[float]:
        return [a / b - 1 for a, b in zip(series[name], series[reference], strict=True)]

    def listed(values: list[float], form: str) -> str:
        return ", ".join(f"{value:{form}} at {t:g}" for t, value in zip(at, values, strict=True))

    mean_close = [abs(value) < CLOSE for value in mean_off]
    variance_off, corrected = off("predicted_variance"), off("corrected_variance")
    variance_close = [abs(value) < CLOSE for value in variance_off]
    paper, unmatched = off("lln_paper"), off("lln_unmatched")
    paper_close = [abs(value) < 2 * CLOSE for value in paper]
    own = off("lln_variance_matched")
    slopes = [
        (y1 - y0) / (x1 - x0)
        for x0, x1, y0, y1 in zip(at, at[1:], series["lln_unmatched"], series["lln_unmatched"][1:], strict=False)
    ]
    return [
        Verdict(
            "The measured mean of log P matches -ln N - σ²/2 perfectly (Figure 5a, Proposition 3.1).",
            outcome_over(mean_close),
            f"within {CLOSE} nats for σ² = {range_of(at, mean_close)}; measured minus predicted: {listed(mean_off, '+.3f')}",
        ),
        Verdict(
            "The measured variance of log P matches σ² perfectly (Figure 5a, Proposition 3.1).",
            outcome_over(variance_close),
            f"σ² is within {CLOSE:.0%} for σ² = {range_of(at, variance_close)}: {listed(variance_off, '+.1%')}; "
            f"σ² + σ⁴/(2d) instead: {listed(corrected, '+.1%')}",
        ),
        Verdict(
            "After moment matching the variance of LLN approximates that of softmax (Figure 5b, the paper's constants).",
            outcome_over(paper_close),
            f"within {2 * CLOSE:.0%} for σ² = {range_of(at, paper_close)}: {listed(paper, '+.1%')}; "
            f"this package's variance matching: {listed(own, '+.1%')}",
        ),
        Verdict(
            "Without matching LLN's variance is much smaller than softmax's (Figure 5b).",
            outcome_over([value < -0.5 for value in unmatched]),
            listed(unmatched, "+.1%"),
        ),
        Verdict(
            "Without matching it shows a nearly linear trend (Figure 5b).",
            HOLDS if max(slopes) < 2 * min(slopes) else FAILS,
            f"its slope stays between {min(slopes):.4f} and {max(slopes):.4f} over σ² = {at[0]:g} to {at[-1]:g}",
        ),
    ]


def draw(data: dict[str, Any]) -> Any:
    from lln_lab.experiments.figure import looks, panels
    from lln_lab.names import LABELS

    figure, (left, right) = panels(2, height=4.6)
    look = looks(["softmax", "lln_paper", "lln_unmatched", "lln (target=variance)"])
    variance, mean = look["softmax"]["color"], "0.55"
    series, at = data["series"], data["score_variance"]
    left.plot(at, series["variance"], "o", color=variance, label="variance, measured")
    left.plot(at, series["predicted_variance"], "--", color=variance, label="variance, Prop. 3.1")
    left.plot(at, series["corrected_variance"], ":", color=variance, label="σ² + σ⁴/(2d)")
    left.plot(at, series["mean"], "s", color=mean, label="mean, measured")
    left.plot(at, series["predicted_mean"], "--", color=mean, label="mean, Prop. 3.1")
    left.set(xlabel="input variance σq²σk²", title="(a) log P of softmax attention")
    right.plot(at, series["variance"], lw=2.2, label="softmax", **look["softmax"])
    for name in ("lln_paper", "lln_unmatched"):
        right.plot(at, series[name], label=LABELS[name], **look[name])
    right.plot(at, series["lln_variance_matched"], label="LLN, variance matching", **look["lln (target=variance)"])
    right.set(xlabel="input variance σq²σk²", title="(b) variance of log P")
    for axis in (left, right):
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8)
    figure.suptitle(f"Figure 5: moments of attention, N = {data['length']}, d = {data['dim']}", fontsize=11)
    return figure
