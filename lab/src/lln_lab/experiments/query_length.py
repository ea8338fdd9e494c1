"""Who forgets the length of the query? Entropy and gap of every member of the zoo that has an attention matrix.

Softmax sharpens as |q| grows: P_ij ∝ exp(|q_i| u_i · k_j / √d), u_i the direction of q_i. Features that are homogeneous,
f(r x) = r^p f(x), cannot: r^p stands above and below the fraction and cancels.

    length of the query   queries of nine lengths in one sequence, the same directions at each: the entropy of their rows
    temperature           one length for all queries, from short to long: entropy and spectral gap of the whole matrix
    number of tokens      log₂ N − entropy, queries of length √d

"Follows" is how far a member's entropy falls from the shortest to the longest queries, as a share of softmax's fall. Members
with learned features are measured as they start. Entropies of matrices with negative entries are those of their magnitudes.
"""

import math
from typing import Any

import numpy
import torch
from torch import Tensor

from lln import zoo
from lln.instruments import entropy, spectral_gap
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.registry import member
from lln_lab import colours
from lln_lab.experiments.verdict import FAILS, HOLDS, Verdict
from lln_lab.names import name_of

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"directions": 24, "tokens": (64, 128, 256), "dim": 64, "seeds": 2},
    "full": {"directions": 96, "tokens": (128, 256, 512, 1024, 2048), "dim": 64, "seeds": 8},
}
LENGTHS = tuple(2 ** (step / 2) for step in range(-4, 5))  # |q| / √d, from 1/4 to 4
FORGETS = 0.1  # a share of softmax's fall below which a member forgets
ROWS_SUM = 1e-9  # a gap is that of a matrix whose rows sum to one, up to this


def run(preset: str = "quick", seed: int = 0) -> dict[str, Any]:
    sizes = PRESETS[preset]
    found, without = {}, {}
    for name in zoo.names():
        reason = why_not(name)
        if reason is None:
            found[name] = measure(name, sizes, seed)
        else:
            without[name] = reason
    fall = _fall(found["softmax"])
    for one in found.values():
        one["follows"] = _fall(one) / fall
    data = {"preset": preset, **sizes, "lengths": list(LENGTHS), "members": found, "not_measured": without}
    return {**data, "verdicts": [verdict.as_data() for verdict in verdicts(data)]}


def why_not(name: str) -> str | None:
    """Why a member has no matrix to measure, or None."""
    card = zoo.card(name)
    if not issubclass(member(name).make, Mechanism):
        return "a whole layer, not a function of queries and keys"
    if not card.dense:
        return "its output is no matrix times the values"
    return None if card.bidirectional else "causal only"


def measure(name: str, sizes: dict[str, Any], seed: int) -> dict[str, Any]:
    by_length, by_temperature, by_tokens, signed = [], [], [], []
    for number in range(sizes["seeds"]):
        random = numpy.random.default_rng(seed + number)
        mixed = mixed_lengths(name, sizes, random)
        by_length.append(mixed[0])
        signed.append(mixed[1])
        by_temperature.append([concentration(matrix_of(name, *draw_of(sizes, r, random))) for r in LENGTHS])
        by_tokens.append([
            math.log2(n) - float(row_entropy(matrix_of(name, *draw_of({**sizes, "length": n}, 1.0, random))).mean())
            for n in sizes["tokens"]
        ])  # fmt: skip
    heat = numpy.array(by_temperature, dtype=float)
    return {
        "by_length_of_query": _mean(by_length),
        "by_length_of_query_sd": _spread(by_length),
        "by_temperature": {"entropy": _mean(heat[..., 0]), "gap": _mean(heat[..., 1])},
        "by_tokens": _mean(by_tokens),
        "negative_share": float(numpy.mean(signed)),
        "learned": zoo.card(name).learned,
    }


def mixed_lengths(name: str, sizes: dict[str, Any], random: numpy.random.Generator) -> tuple[list[float], float]:
    """The mean entropy of the rows of each length, and the share of negative weight."""
    directions, dim = sizes["directions"], sizes["dim"]
    length = directions * len(LENGTHS)
    unit = _unit(random.standard_normal((directions, dim)))
    order = torch.from_numpy(random.permutation(length))  # blocks and landmarks see all lengths
    q = torch.cat([r * unit for r in LENGTHS])[order]
    k = torch.from_numpy(random.standard_normal((length, dim)))
    matrix = matrix_of(name, q[None, None], k[None, None])
    rows = row_entropy(matrix)[order.argsort()].unflatten(0, (len(LENGTHS), directions))
    return rows.mean(dim=1).tolist(), float(matrix.clamp(max=0).abs().sum() / matrix.abs().sum())


def draw_of(sizes: dict[str, Any], r: float, random: numpy.random.Generator) -> tuple[Tensor, Tensor]:
    length = sizes.get("length", sizes["directions"] * len(LENGTHS))
    q = r * _unit(random.standard_normal((length, sizes["dim"])))
    return q[None, None], torch.from_numpy(random.standard_normal((length, sizes["dim"])))[None, None]


def matrix_of(name: str, q: Tensor, k: Tensor) -> Tensor:
    """(N, N), float64."""
    torch.manual_seed(0)  # random features and initial weights
    made: Any = member(name).make(zoo.options(name), Shape(q.shape[3], 1, q.shape[2]))
    with torch.no_grad():
        matrix: Tensor = made.double().dense(q, k)[0, 0]
    return matrix


def concentration(matrix: Tensor) -> tuple[float, float]:
    """Mean entropy of the rows in bits, and the spectral gap, NaN where the matrix is not stochastic."""
    stochastic = bool((matrix.sum(dim=-1) - 1).abs().max() < ROWS_SUM) and bool(matrix.min() >= 0)
    gap = float(spectral_gap(matrix[None, None]).gap) if stochastic else math.nan
    return float(row_entropy(matrix).mean()), gap


def row_entropy(matrix: Tensor) -> Tensor:
    """(N,) in bits, of the magnitudes."""
    p = matrix.abs()
    p = p / p.sum(dim=-1, keepdim=True)
    return entropy(p[:, None, None, :])[:, 0]


def verdicts(data: dict[str, Any]) -> list[Verdict]:
    follows = {name: one["follows"] for name, one in data["members"].items()}
    told = ", ".join(f"{name} {share:.2f}" for name, share in sorted(follows.items(), key=lambda pair: -pair[1]))
    still = [follows[name] for name in ("relu", "quadratic") if name in follows]
    ours = [follows[name] for name in ("lln", "lln_diag") if name in follows]
    return [
        Verdict(
            "Kernels of homogeneous features (ReLU, quadratic) forget the length of the query.",
            HOLDS if max(map(abs, still)) < FORGETS else FAILS,
            f"share of softmax's fall in entropy from |q| = √d/4 to 4√d, over {data['seeds']} seeds: {told}",
        ),
        Verdict(
            "LLN and LLN+Diag do not forget the length of the query.",
            HOLDS if min(ours) > FORGETS else FAILS,
            f"LLN {follows['lln']:.2f} and LLN+Diag {follows['lln_diag']:.2f} of softmax's fall",
        ),
    ]


def draw(data: dict[str, Any]) -> Any:
    from lln_lab.experiments.figure import panels

    figure, (curves, bars) = panels(2, height=5.6, width=5.4)
    order = sorted(data["members"], key=lambda name: data["members"][name]["follows"])
    for name in order:
        colour, weight = _style(name)
        curves.plot(
            data["lengths"], data["members"][name]["by_length_of_query"], color=colour, lw=weight, zorder=1 + weight
        )
    curves.set(xscale="log", xlabel="length of the query, |q| / √d", title="entropy of its row [bits]")
    curves.set_xticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
    curves.minorticks_off()
    follows = [data["members"][name]["follows"] for name in order]
    bars.barh([name_of(name) for name in order], follows, color=[_style(name)[0] for name in order])
    bars.set(xlabel="fall of the entropy, as a share of softmax's", title="who follows the length of the query")
    bars.tick_params(axis="y", labelsize=8)
    bars.grid(axis="y", visible=False)
    figure.suptitle(
        f"Queries of {len(data['lengths'])} lengths in one sequence, d = {data['dim']}, {data['seeds']} seeds",
        fontsize=11,
    )
    return figure


def _style(name: str) -> tuple[str, float]:
    return (colours.of(name), 2.2) if name in (*colours.OWN, "near_far") else ("#b5b5b5", 0.9)


def _unit(x: Any) -> Tensor:
    """Rows of length √d."""
    found = torch.from_numpy(x)
    return found / found.norm(dim=-1, keepdim=True) * found.shape[-1] ** 0.5


def _fall(one: dict[str, Any]) -> float:
    values = one["by_length_of_query"]
    return float(values[0] - values[-1])


def _mean(values: Any) -> list[float | None]:
    return [None if math.isnan(x) else x for x in numpy.mean(numpy.array(values, dtype=float), axis=0).tolist()]


def _spread(values: Any) -> list[float]:
    found: list[float] = numpy.std(numpy.array(values, dtype=float), axis=0, ddof=1).tolist()
    return found
