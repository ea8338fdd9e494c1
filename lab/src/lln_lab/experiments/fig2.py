"""Figure 2: entropy (eq. 7) and spectral gap of attention kernels against the temperature of softmax attention (eq. 5)."""

from typing import Any

import torch

from lln.instruments import entropy, spectral_gap, top_singular_value
from lln_lab.experiments.inputs import KERNELS, gaussian
from lln_lab.experiments.verdict import FAILS, HOLDS, Verdict, outcome_over, range_of

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"length": 512, "dim": 64, "seeds": 2},  # of the full length: at 192 tokens LLN is further from softmax
    "full": {"length": 512, "dim": 64, "seeds": 12},
}
TEMPERATURES = (0.25, 1 / 3, 0.5, 0.5**0.5, 1.0, 2**0.5, 2.0, 4.0)
ALIKE = 0.10  # "similar": within a tenth of softmax's value
INDIFFERENT = 0.02  # "indifferent to the temperature": varies by less than this over the whole range


def run(preset: str = "quick", seed: int = 0) -> dict[str, Any]:
    sizes = PRESETS[preset]
    curves: dict[str, dict[str, list[float]]] = {
        name: {"entropy": [], "gap": [], "entropy_sd": [], "gap_sd": []} for name in KERNELS
    }
    singular: list[list[float]] = []
    for tau in TEMPERATURES:
        singular.append([])
        found: dict[str, list[list[float]]] = {name: [] for name in KERNELS}
        for number in range(sizes["seeds"]):
            q, k = gaussian(sizes["length"], sizes["dim"], tau**-2, seed + number)
            for name, kernel in KERNELS.items():
                attention = kernel(q, k)
                gap = spectral_gap(attention, "dense" if name == "softmax" else "auto").gap
                found[name].append([entropy(attention).item(), gap.item()])
                if name == "softmax":
                    singular[-1].append((top_singular_value(attention) / (1 - gap)).item())
        for name, pairs in found.items():
            spread, mean = torch.std_mean(torch.tensor(pairs, dtype=torch.float64), 0)
            for at, what in enumerate(("entropy", "gap")):
                curves[name][what].append(mean[at].item())
                curves[name][f"{what}_sd"].append(spread[at].item())
    data = {"figure": 2, "preset": preset, **sizes, "temperature": list(TEMPERATURES), "curves": curves}
    data["singular_over_eigenvalue"] = [[min(ratios), max(ratios)] for ratios in singular]
    return {**data, "verdicts": [verdict.as_data() for verdict in verdicts(data)]}


def verdicts(data: dict[str, Any]) -> list[Verdict]:
    curves, taus = data["curves"], data["temperature"]
    softmax = curves["softmax"]

    def worst(name: str) -> list[float]:
        """The larger of the two relative differences to softmax, at each temperature."""
        return [
            max(abs(curves[name][what][i] / softmax[what][i] - 1) for what in ("entropy", "gap"))
            for i in range(len(taus))
        ]

    def listed(values: list[float]) -> str:
        return ", ".join(f"{value:.1%} at τ={tau:.2g}" for tau, value in zip(taus, values, strict=True))

    rising = all(x < y for what in ("entropy", "gap") for x, y in zip(softmax[what], softmax[what][1:], strict=False))
    found = [
        Verdict(
            "Entropy and spectral gap of softmax attention increase with temperature (Theorem 3.2, section 3.2.2).",
            HOLDS if rising else FAILS,
            f"entropy {softmax['entropy'][0]:.2f} to {softmax['entropy'][-1]:.2f} bits and gap {softmax['gap'][0]:.3f} to "
            f"{softmax['gap'][-1]:.3f}, means over {data['seeds']} seeds, for τ = {taus[0]:.2g} to {taus[-1]:.2g}",
        )
    ]
    for name, claim in (
        (
            "lln_paper",
            "With moment matching, LLN's entropy and spectral gap are similar to softmax's (the paper's constants).",
        ),
        ("lln_entropy", "The same with this package's entropy matching."),
    ):
        off = worst(name)
        alike = [value <= ALIKE for value in off]
        numbers = f"both within {ALIKE:.0%} for τ = {range_of(taus, alike)}; worse of the two: {listed(off)}"
        found.append(Verdict(claim, outcome_over(alike), numbers))
    off = worst("lln_unmatched")
    apart = [value > ALIKE for value in off]
    found.append(
        Verdict(
            "Without moment matching LLN does not concentrate as softmax does.",
            outcome_over(apart),
            f"further than {ALIKE:.0%} for τ = {range_of(taus, apart)}; {listed(off)}",
        )
    )
    spans = {
        name: max((max(curve[what]) - min(curve[what])) / max(curve[what]) for what in ("entropy", "gap"))
        for name, curve in curves.items()
    }
    still = [spans[name] < INDIFFERENT for name in ("relu", "quadratic", "elu")]
    spans_listed = ", ".join(f"{name} {spans[name]:.2%}" for name in ("relu", "quadratic", "elu", "softmax"))
    found.append(
        Verdict(
            "Other kernels (quadratic, ReLU and the like) are indifferent to the temperature.",
            outcome_over(still),
            f"largest change of entropy or gap over the range: {spans_listed}",
        )
    )
    low, high = (extreme(pair[at] for pair in data["singular_over_eigenvalue"]) for at, extreme in ((0, min), (1, max)))
    found.append(
        Verdict(
            "λ₂² is the variance of P along its major principal component (Theorem 3.3).",
            HOLDS if high < 1.01 else FAILS,
            f"the top singular value of the centred softmax matrix is {low:.2f} to {high:.2f} times |λ₂| over all seeds and "
            "temperatures; they agree only for normal matrices",
        )
    )
    return found


def draw(data: dict[str, Any]) -> Any:
    from lln_lab.experiments.figure import legend, looks, panels
    from lln_lab.names import LABELS

    figure, axes = panels(2)
    look = looks(data["curves"])
    for axis, what, title in zip(axes, ("entropy", "gap"), ("entropy [bits]", "spectral gap"), strict=True):
        for name, curve in data["curves"].items():
            low, high = (
                [v + sign * s for v, s in zip(curve[what], curve[f"{what}_sd"], strict=True)] for sign in (-1, 1)
            )
            thick = 2.2 if name == "softmax" else 1.5
            axis.plot(data["temperature"], curve[what], label=LABELS[name], lw=thick, **look[name])
            axis.fill_between(data["temperature"], low, high, color=look[name]["color"], alpha=0.12, lw=0)
        axis.set(xscale="log", xlabel="temperature τ", title=title)
        axis.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
        axis.minorticks_off()
    legend(figure, axes[:1])
    figure.suptitle(
        f"Figure 2: concentration against temperature, N = {data['length']}, d = {data['dim']}", fontsize=11
    )
    return figure
