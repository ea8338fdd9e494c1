"""Figure 6: the variance of the log of a sum of d log-normal variables, against Fenton's formula (eq. 28) and a line (eq. 30).

    var(ln sum_l exp(x_l)),  x_l ~ N(0, s);    Fenton: ln((e^s - 1)/d + 1)

It also measures eq. 29 and eq. 32 on LLN attention itself: what the denominator varies by, and whether the variances of
numerator and denominator add up.
"""

import math
from typing import Any

import numpy
import torch

from lln_lab.experiments.inputs import gaussian
from lln_lab.experiments.verdict import Verdict, outcome_over

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"draws": 40_000, "length": 384},
    "full": {"draws": 200_000, "length": 1024},
}
DIMS = (16, 64, 128)
MODERATE = tuple(round(0.2 * i, 1) for i in range(1, 7))
BROAD = (2.0, 4.0, 6.0, 8.0, 10.0, 14.0, 18.0, 24.0, 30.0)
ADDITION = (1.0, 4.0, 10.0, 20.0)
CLOSE = 0.10


def run(preset: str = "quick", seed: int = 0) -> dict[str, Any]:
    sizes = PRESETS[preset]
    random = numpy.random.default_rng(seed)
    moderate: dict[str, list[float]] = {str(d): [] for d in DIMS}
    broad: dict[str, list[float]] = {str(d): [] for d in DIMS}
    for dim in DIMS:
        normal = torch.from_numpy(random.standard_normal((sizes["draws"], dim)))
        for curves, spreads in ((moderate, MODERATE), (broad, BROAD)):
            curves[str(dim)] = [torch.logsumexp(normal * s**0.5, -1).var().item() for s in spreads]
    addition = [_addition(s, sizes["length"], seed) for s in ADDITION]
    data = {
        "figure": 6, "preset": preset, **sizes, "moderate_s": list(MODERATE), "broad_s": list(BROAD),
        "moderate": moderate, "broad": broad, "addition": addition,
    }  # fmt: skip
    return {**data, "verdicts": [verdict.as_data() for verdict in verdicts(data)]}


def _addition(s: float, length: int, seed: int) -> dict[str, float]:
    """Variances of log P of LLN, of its log numerator and of its log denominator, d = 64."""
    q, k = (x[0, 0] * (s / 2) ** 0.5 for x in gaussian(length, 64, 1.0, seed))
    numerator = torch.stack([torch.logsumexp(row + k, -1) for row in q])  # (N, N)
    denominator = torch.logsumexp(numerator, -1, keepdim=True)
    return {
        "s": s,
        "attention": (numerator - denominator).var().item(),
        "numerator": numerator.var().item(),
        "denominator": denominator.var().item(),
        "fenton_denominator": fenton(s, length),
    }


def fenton(s: float, terms: int) -> float:
    return math.log(math.expm1(s) / terms + 1)


def linear_fit(x: list[float], y: list[float]) -> tuple[float, float, float]:
    """Slope, intercept and R² of the least-squares line."""
    slope, intercept = numpy.polyfit(x, y, 1)
    residual = numpy.asarray(y) - slope * numpy.asarray(x) - intercept
    return float(slope), float(intercept), float(1 - residual.var() / numpy.asarray(y).var())


def verdicts(data: dict[str, Any]) -> list[Verdict]:
    cases, close = [], []
    for dim in DIMS:
        for s, measured in zip(data["moderate_s"], data["moderate"][str(dim)], strict=True):
            ratio = fenton(s, dim) / measured - 1
            cases.append((dim, s, ratio))
            close.append(abs(ratio) < CLOSE)
    fits = {dim: linear_fit(data["broad_s"], data["broad"][str(dim)]) for dim in DIMS}
    slopes = {
        dim: [
            (y1 - y0) / (x1 - x0)
            for x0, x1, y0, y1 in zip(
                data["broad_s"], data["broad_s"][1:], data["broad"][str(dim)], data["broad"][str(dim)][1:], strict=False
            )
        ]
        for dim in DIMS
    }
    straight = [max(slope) < 1.5 * min(slope) for slope in slopes.values()]
    sums = [row["numerator"] + row["denominator"] for row in data["addition"]]
    adds = [abs(total / row["attention"] - 1) < CLOSE for total, row in zip(sums, data["addition"], strict=True)]
    shrink = [row["fenton_denominator"] / row["denominator"] for row in data["addition"]]
    at = [row["s"] for row in data["addition"]]
    worst = max(cases, key=lambda case: abs(case[2]))
    return [
        Verdict(
            "In the moderate case, σ² from 0.2 to 1.2, Fenton's formula aligns with the measured variance (Figure 6a).",
            outcome_over(close),
            f"{sum(close)} of {len(close)} points within {CLOSE:.0%} over d = {DIMS}; "
            f"worst {worst[2]:+.1%} at d = {worst[0]}, σ² = {worst[1]:g}",
        ),
        Verdict(
            "In the broad case the variance grows linearly with the input variance (Figure 6b).",
            outcome_over(straight),
            "; ".join(
                f"d = {dim}: slope {min(slopes[dim]):.3f} to {max(slopes[dim]):.3f} over σ² = {data['broad_s'][0]:g} to "
                f"{data['broad_s'][-1]:g}, R² of a line {fit[2]:.4f}"
                for dim, fit in fits.items()
            )
            + " (linear: the slope changes by less than half)",
        ),
        Verdict(
            "The variance of the LLN matrix is the sum of those of numerator and denominator (eq. 32).",
            outcome_over(adds),
            "; ".join(
                f"σ̃² = {row['s']:g}: {row['numerator']:.3f} + {row['denominator']:.3f} = {total:.3f}, measured "
                f"{row['attention']:.3f}"
                for row, total in zip(data["addition"], sums, strict=True)
            )
            + ". They share the query, so the denominator takes variance away",
        ),
        Verdict(
            "The variance of the denominator is Fenton's with N terms, so it vanishes for large N (eq. 29).",
            outcome_over([abs(ratio - 1) < CLOSE for ratio in shrink]),
            "; ".join(f"σ̃² = {s:g}: predicted/measured {ratio:.3f}" for s, ratio in zip(at, shrink, strict=True)),
        ),
    ]


def draw(data: dict[str, Any]) -> Any:
    from lln_lab.experiments.figure import layer_colours, panels

    figure, (left, right) = panels(2, height=4.8)
    for dim, colour in zip(DIMS, layer_colours(len(DIMS)), strict=True):
        left.plot(data["moderate_s"], data["moderate"][str(dim)], "o", color=colour, ms=5, label=f"d = {dim}, measured")
        theory = [fenton(s, dim) for s in data["moderate_s"]]
        left.plot(data["moderate_s"], theory, "--", color=colour, label=f"d = {dim}, Fenton")
        right.plot(data["broad_s"], data["broad"][str(dim)], "o-", color=colour, ms=4, label=f"d = {dim}, measured")
        slope, intercept, _ = linear_fit(data["broad_s"], data["broad"][str(dim)])
        line = [slope * s + intercept for s in data["broad_s"]]
        right.plot(data["broad_s"], line, ":", color=colour, label=f"{slope:.2f} σ² {intercept:+.2f}")
    left.set(xlabel="σ²", ylabel="variance of the log of the sum", title="(a) moderate")
    right.set(xlabel="σ²", title="(b) broad")
    for axis in (left, right):
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8)
    figure.suptitle("Figure 6: sums of d log-normal variables", fontsize=11)
    return figure
