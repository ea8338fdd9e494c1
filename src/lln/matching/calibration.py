"""Monte Carlo calibration of moment matching: how concentrated softmax and LLN attention are, and the inverse.

For Gaussian q and k of unit variance, head size d and N keys, four curves are measured in float64:

    softmax over T:  log P_ij = sqrt(T/d) q_i.k_j - log Z_i                                                  (eq. 2)
    LLN over s:      log P_ij = log sum_l exp(alpha q_il + beta k_jl) - log Z_i,  alpha = beta = sqrt(s/2)   (eq. 9)

    deficit  = mean over rows of sum_j P_ij ln(N P_ij)        log N minus the entropy; the target "entropy"
    variance = variance of ln P_ij over all entries           the target "variance"

and s(T) is where LLN's deficit (or variance) equals softmax's. The deficit itself is accumulated, not log N - H, whose
difference would vanish for narrow inputs. Both attentions see the same q and k, which cancels part of the noise.

Quadrupling s doubles alpha and beta, which squares every feature: so exponentials are needed only once per factor of
four.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from lln.writing import whole

HEAD_DIMS = (8, 16, 32, 64, 128, 256)
LENGTHS = (16, 64, 256, 1024, 4096, 16384, 65536)
LOG2_T = numpy.arange(-14.0, 6.1)  # measured in octaves: the curves are smooth, and a cubic fills in the rest
LOG2_S = numpy.arange(-11.0, 11.1)
STORED_LOG2_T = numpy.arange(-14.0, 6.1, 0.25)
CHAIN = 2  # octaves between a feature and its square
_ENTRIES = 1 << 18  # of P, measured per seed
_FEATURES_AT_A_TIME = 1 << 19

Array = NDArray[numpy.float64]


@dataclass
class Curves:
    """Deficit (nats) and variance of log P, averaged over rows and matrices: softmax over T, LLN over s."""

    softmax_deficit: Array
    softmax_variance: Array
    lln_deficit: Array
    lln_variance: Array


def rows_and_matrices(length: int) -> tuple[int, int]:
    """How many rows of P are measured, and in how many independent matrices, per seed."""
    rows = max(16, min(length, 256, _ENTRIES // length))
    return rows, max(1, (1 << 16) // (rows * length))


def measure(
    head_dim: int, length: int, seed: int, log2_t: Array = LOG2_T, log2_s: Array = LOG2_S, rows: int | None = None
) -> Curves:
    """The four curves of one seed. Grids go in octaves."""
    default_rows, matrices = rows_and_matrices(length)
    rows = default_rows if rows is None else min(rows, length)
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(matrices, rows, head_dim, generator=generator, dtype=torch.float64)
    k = torch.randn(matrices, length, head_dim, generator=generator, dtype=torch.float64)
    # the table is looked up with measured variances, so that is what its T means
    k = k / _rms(k)
    q = q / _rms(q) if rows == length else q
    softmax = _softmax_curves(q, k, log2_t)
    lln = _lln_curves(q, k, log2_s)
    return Curves(*softmax, *lln)


def _rms(x: Tensor) -> Tensor:
    return (x - x.mean(dim=(1, 2), keepdim=True)).square().mean(dim=(1, 2), keepdim=True).sqrt()


def _softmax_curves(q: Tensor, k: Tensor, log2_t: Array) -> tuple[Array, Array]:
    length, dim = k.shape[-2:]
    logits = q @ k.transpose(1, 2) * dim**-0.5  # (matrices, rows, N)
    within, mean = torch.var_mean(logits, dim=-1, correction=0)
    logits -= logits.amax(dim=-1, keepdim=True)
    mean = logits.mean(dim=-1)
    deficits, variances = numpy.empty(len(log2_t)), numpy.empty(len(log2_t))
    for link in range(CHAIN):
        powers = (logits * 2.0 ** (log2_t[link] / 2)).exp_()
        for at in range(link, len(log2_t), CHAIN):
            root = 2.0 ** (log2_t[at] / 2)
            z = powers.sum(dim=-1)
            inner = torch.einsum("mrn,mrn->mr", powers, logits) * root
            deficits[at] = float((inner / z - z.log() + numpy.log(length)).mean())
            variances[at] = _total_variance(root**2 * within, root * mean - z.log())
            powers.square_()
    return deficits, variances


def _lln_curves(q: Tensor, k: Tensor, log2_s: Array) -> tuple[Array, Array]:
    length = k.shape[1]
    keys_at_a_time = max(2048, min(8192, _FEATURES_AT_A_TIME // k.shape[2]))
    peak = k.amax(dim=1, keepdim=True)  # c_l: every key feature is in (0, 1]
    query = q + peak
    query = query - query.amax(dim=-1, keepdim=True)  # and so is every query feature; the largest of a row is 1
    deficits, variances = numpy.empty(len(log2_s)), numpy.empty(len(log2_s))
    for link in range(CHAIN):
        steps = range(link, len(log2_s), CHAIN)
        alpha = (2.0 ** log2_s[link] / 2) ** 0.5
        sums = q.new_zeros(len(steps), 4, *q.shape[:2])  # z, sum s log s, sum log s, sum log^2 s
        for start in range(0, length, keys_at_a_time):
            key_features = (alpha * (k[:, start : start + keys_at_a_time] - peak)).exp_()
            query_features = (alpha * query).exp()
            for step in range(len(steps)):
                kernel = query_features @ key_features.transpose(1, 2)  # (matrices, rows, keys)
                log = kernel.log()
                sums[step, 0] += kernel.sum(dim=-1)
                sums[step, 1] += torch.einsum("mrn,mrn->mr", kernel, log)
                sums[step, 2] += log.sum(dim=-1)
                sums[step, 3] += torch.einsum("mrn,mrn->mr", log, log)
                key_features.square_()
                query_features.square_()
        for step, at in enumerate(steps):
            z, inner, mean, square = sums[step]
            mean, square = mean / length, square / length
            deficits[at] = float((inner / z - z.log() + numpy.log(length)).mean())
            variances[at] = _total_variance(square - mean.square(), mean - z.log())
    return deficits, variances


def _total_variance(within: Tensor, row_means: Tensor) -> float:
    """Variance within rows plus variance between rows (matrices, rows); the latter without the bias of few rows."""
    return float((within.mean(dim=-1) + row_means.var(dim=-1, correction=1)).mean())


def average(head_dim: int, length: int, seeds: list[int]) -> Curves:
    """Mean curves over seeds."""
    curves = [measure(head_dim, length, seed) for seed in seeds]
    return Curves(*(numpy.mean([getattr(c, name) for c in curves], axis=0) for name in Curves.__annotations__))


def invert(curves: Curves, target: str, length: int, log2_t: Array = STORED_LOG2_T) -> tuple[Array, Array]:
    """log2(s/T) at log2_t, and which points were reached; the others keep the last s that was."""
    if target == "entropy":
        wanted, measured = (_log_odds(c, length) for c in (curves.softmax_deficit, curves.lln_deficit))
    else:
        wanted, measured = numpy.log(curves.softmax_variance), numpy.log(curves.lln_variance)
    wanted = monotone_cubic(LOG2_T, wanted, log2_t)
    rising = numpy.concatenate([[True], numpy.diff(numpy.maximum.accumulate(measured)) > 0])
    log2_found = monotone_cubic(measured[rising], LOG2_S[rising], wanted)
    reached = (wanted >= measured[rising][0]) & (wanted <= measured[rising][-1])
    return numpy.maximum.accumulate(log2_found) - log2_t, reached


def _log_odds(deficit: Array, length: int) -> Array:
    """log deficit where it is small, minus log entropy where that is: resolves both ends."""
    full = numpy.log(length)
    return numpy.log(deficit) - numpy.log(numpy.maximum(full - deficit, 1e-12))


def monotone_cubic(x: Array, y: Array, at: Array) -> Array:
    """Cubic Hermite interpolation with Fritsch-Carlson slopes; constant outside [x_0, x_n]."""
    h, delta = numpy.diff(x), numpy.diff(y) / numpy.diff(x)
    slope = numpy.empty_like(y)
    slope[0], slope[-1] = delta[0], delta[-1]
    left, right = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
    same_sign = delta[1:] * delta[:-1] > 0
    with numpy.errstate(divide="ignore", invalid="ignore"):
        harmonic = (left + right) / (left / delta[:-1] + right / delta[1:])
    slope[1:-1] = numpy.where(same_sign, harmonic, 0.0)
    at = numpy.clip(at, x[0], x[-1])
    i = numpy.clip(numpy.searchsorted(x, at, side="right") - 1, 0, len(h) - 1)
    u = (at - x[i]) / h[i]
    start, end = (1 + 2 * u) * (1 - u) ** 2, u**2 * (3 - 2 * u)
    result: Array = start * y[i] + end * y[i + 1] + h[i] * (u * (1 - u) ** 2 * slope[i] + u**2 * (u - 1) * slope[i + 1])
    return result


def assemble(cells: dict[tuple[int, int], Curves], seeds: list[int], provenance: dict[str, Any]) -> dict[str, Any]:
    """The table as it ships, from the mean curves of every (head size, length)."""
    head_dims = sorted({d for d, _ in cells})
    lengths = sorted({n for _, n in cells})
    ratio: dict[str, Any] = {}
    calibrated: dict[str, Any] = {}
    for target in ("entropy", "variance"):
        inverse = {cell: invert(curves, target, cell[1]) for cell, curves in cells.items()}
        ratio[target] = [[numpy.round(inverse[d, n][0], 5).tolist() for n in lengths] for d in head_dims]
        calibrated[target] = []
        for d in head_dims:
            reached = STORED_LOG2_T[numpy.all([inverse[d, n][1] for n in lengths], axis=0)]
            calibrated[target].append([float(2.0 ** reached[0]), float(2.0 ** reached[-1])])
    return {
        "what": "log2(s/T) over head sizes, lengths and T: s = sigma~^2 at which LLN has softmax's concentration",
        "provenance": provenance,
        "seeds": [min(seeds), max(seeds)],
        "rows_and_matrices_per_seed": {str(n): rows_and_matrices(n) for n in lengths},
        "measured_log2_s": _grid(LOG2_S),
        "measured_log2_t": _grid(LOG2_T),
        "head_dims": head_dims,
        "log2_length": _grid(numpy.log2(lengths)),
        "log2_t": _grid(STORED_LOG2_T),
        "calibrated_t": calibrated,
        "log2_ratio": ratio,
    }


def _grid(points: Array) -> dict[str, float]:
    return {"first": float(points[0]), "step": float(points[1] - points[0]), "points": len(points)}


def fit_line(
    head_dim: int,
    s_range: tuple[float, float] = (1.0, 16.0),
    *,
    length: int = 1024,
    points: int = 16,
    seeds: int = 8,
) -> tuple[float, float]:
    """Constants a, b of var(log P_LLN) = a sigma~^2 + b (eq. 34), fitted by least squares over s_range.

    The curve is convex, so the line depends on the range: give the range you will use it in.
    """
    low, high = s_range
    if not 0 < low < high:
        raise ValueError(f"s_range must be (low, high) with 0 < low < high, got {s_range}")
    spaced = numpy.linspace(low, high, points)
    log2_s = numpy.arange(numpy.floor(numpy.log2(low)), numpy.ceil(numpy.log2(high)) + 0.1)
    curve = numpy.mean(
        [measure(head_dim, length, seed, LOG2_T[:CHAIN], log2_s).lln_variance for seed in range(seeds)], axis=0
    )
    variance = numpy.exp(monotone_cubic(log2_s, numpy.log(curve), numpy.log2(spaced)))
    a, b = numpy.polyfit(spaced, variance, 1)
    return float(a), float(b)


def cell_path(folder: Path, head_dim: int, length: int, seeds: int) -> Path:
    """Where a finished (head size, length) cell is kept, so that an interrupted calibration goes on."""
    return folder / f"d{head_dim}_n{length}_seeds{seeds}.npz"


def save_cell(path: Path, curves: Curves) -> None:
    with whole(path) as aside, aside.open("wb") as file:
        numpy.savez(file, **{name: getattr(curves, name) for name in Curves.__annotations__})


def load_cell(path: Path) -> Curves:
    with numpy.load(path) as stored:
        return Curves(*(stored[name] for name in Curves.__annotations__))
