"""Figure 7: histograms of the logs of the entries of softmax and LLN attention, before and after moment matching."""

from typing import Any

import numpy

from lln.instruments import lognormality
from lln_lab.experiments.inputs import gaussian, lln_entropy, lln_paper, lln_unmatched, softmax
from lln_lab.experiments.verdict import FAILS, HOLDS, WITHIN, Verdict

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"length": 256, "dim": 64, "score_variance": 1.0},
    "full": {"length": 1024, "dim": 64, "score_variance": 1.0},
}
ATTENTIONS = {"softmax": softmax, "lln_paper": lln_paper, "lln_entropy": lln_entropy, "lln_unmatched": lln_unmatched}
BINS = 80
CLOSE = 0.05  # two distributions "closely follow" each other when their distribution functions differ by less


def run(preset: str = "quick", seed: int = 0) -> dict[str, Any]:
    sizes = PRESETS[preset]
    q, k = gaussian(sizes["length"], sizes["dim"], sizes["score_variance"], seed)
    logs = {name: kernel(q, k).dense().log().flatten().numpy() for name, kernel in ATTENTIONS.items()}
    edges = numpy.linspace(
        min(numpy.quantile(x, 1e-4) for x in logs.values()),
        max(numpy.quantile(x, 1 - 1e-4) for x in logs.values()),
        BINS + 1,
    )
    reference = numpy.sort(logs["softmax"])
    described = {}
    for name, kernel in ATTENTIONS.items():
        found = lognormality(kernel(q, k))
        described[name] = {
            "density": numpy.histogram(logs[name], edges, density=True)[0].tolist(),
            "mean": found.mean.item(),
            "variance": found.variance.item(),
            "skewness": found.skewness.item(),
            "kurtosis": found.kurtosis.item(),
            "ks_to_log_normal": found.ks_distance.item(),
            "ks_to_softmax": _distance(reference, numpy.sort(logs[name])),
            "ks_to_softmax_about_the_means": _distance(
                reference - reference.mean(), numpy.sort(logs[name]) - logs[name].mean()
            ),
        }
    data = {"figure": 7, "preset": preset, **sizes, "edges": edges.tolist(), "attentions": described}
    return {**data, "verdicts": [verdict.as_data() for verdict in verdicts(data)]}


def _distance(first: numpy.ndarray, second: numpy.ndarray) -> float:
    """Kolmogorov-Smirnov distance of two sorted samples of the same size."""
    everything = numpy.concatenate([first, second])
    size = len(first)
    gaps = numpy.searchsorted(first, everything, "right") - numpy.searchsorted(second, everything, "right")
    return float(numpy.abs(gaps).max() / size)


def verdicts(data: dict[str, Any]) -> list[Verdict]:
    found = data["attentions"]
    matched, plain, softmax = found["lln_paper"], found["lln_unmatched"], found["softmax"]
    near, far = matched["ks_to_softmax_about_the_means"], plain["ks_to_softmax_about_the_means"]
    return [
        Verdict(
            "After moment matching the LLN distribution closely follows softmax's (the paper's constants).",
            HOLDS if near < CLOSE else WITHIN if near < far else FAILS,
            f"distance of log P about its mean to softmax's {near:.3f} (unmatched {far:.3f}; closely: below {CLOSE}); "
            f"variance {matched['variance']:.3f} against {softmax['variance']:.3f}, "
            f"skewness {matched['skewness']:+.2f} against {softmax['skewness']:+.2f}, "
            f"excess kurtosis {matched['kurtosis']:+.2f} against {softmax['kurtosis']:+.2f}",
        ),
        Verdict(
            "The two distributions have slightly different means, since only variances are matched.",
            HOLDS if 0.02 < abs(matched["mean"] - softmax["mean"]) < softmax["variance"] ** 0.5 else FAILS,
            f"mean of log P {matched['mean']:.3f} (LLN) and {softmax['mean']:.3f} (softmax)",
        ),
        Verdict(
            "The softmax matrix is log-normal (Proposition 3.1).",
            HOLDS if softmax["ks_to_log_normal"] < 0.01 else FAILS,
            f"Kolmogorov-Smirnov distance to the fitted log-normal {softmax['ks_to_log_normal']:.4f}",
        ),
        Verdict(
            "The LLN matrix is log-normal (Proposition 4.1).",
            HOLDS if matched["ks_to_log_normal"] < 0.01 else WITHIN if matched["ks_to_log_normal"] < CLOSE else FAILS,
            f"Kolmogorov-Smirnov distance to the fitted log-normal {matched['ks_to_log_normal']:.4f} (softmax "
            f"{softmax['ks_to_log_normal']:.4f}); roughly bell-shaped in log space, with a heavier right tail",
        ),
    ]


def draw(data: dict[str, Any]) -> Any:
    from lln_lab.experiments.figure import legend, looks, panels
    from lln_lab.names import LABELS

    figure, axes = panels(2)
    edges, look = data["edges"], looks(data["attentions"])
    for axis, shown, title in zip(
        axes,
        (("softmax", "lln_unmatched"), ("softmax", "lln_paper", "lln_entropy")),
        ("before moment matching", "after moment matching"),
        strict=True,
    ):
        for name in shown:
            density, colour = data["attentions"][name]["density"], look[name]["color"]
            axis.stairs(density, edges, color=colour, ls=look[name]["ls"], label=LABELS[name], lw=1.6, fill=False)
            if name == "softmax":
                axis.stairs(density, edges, color=colour, alpha=0.12, fill=True)
        axis.set(xlabel="log P", ylabel="density", title=title)
    legend(figure, axes)
    sizes = f"N = {data['length']}, d = {data['dim']}, σq²σk² = {data['score_variance']:g}"
    figure.suptitle(f"Figure 7: distribution of the entries, {sizes}", fontsize=11)
    return figure
