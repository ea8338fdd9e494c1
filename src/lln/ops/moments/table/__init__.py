"""The calibrated table of moment matching: sigma~^2 as a function of target, head size, number of keys and T.

    s = sigma~^2 = alpha^2 sigma_q^2 + beta^2 sigma_k^2,    T = scale^2 d sigma_q^2 sigma_k^2

What is stored and interpolated is r = s / T, as log2 r over uniform grids of log2 T and log2 N: for narrow inputs r
tends to the constant 2d, so the limit T -> 0 is exact and nothing is divided by a variance. Below the grid r stays
what it is at its edge; above it s does. `lln calibrate` writes the table (`lln.matching.calibration`).
"""

import json
import math
from functools import cache
from importlib import resources
from typing import Any

import numpy
import torch
from torch import Tensor

from lln.ops import graphs
from lln.ops.operation import LIBRARY

TARGETS = ("entropy", "variance")


@cache
def load() -> dict[str, Any]:
    """The shipped table with its metadata: grids, seeds, versions."""
    text = (resources.files(__name__) / "matching.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def calibrated_range(target: str, head_dim: int) -> tuple[float, float]:
    """(lowest, highest) T for which the table was calibrated at every length; outside, T is clamped."""
    table = load()
    log2_dims = numpy.log2(table["head_dims"])
    nearest = int(numpy.abs(log2_dims - numpy.log2(head_dim)).argmin())
    low, high = table["calibrated_t"][target][nearest]
    return low, high


def matched_ratio(t: Tensor, keys: Tensor, target: str, head_dim: int) -> Tensor:
    """r = s / T for temperatures t and key counts `keys` of one shape; one opaque step for torch.compile."""
    if graphs.forms is not None:
        return differentiable_matched_ratio(t, keys, target, head_dim)
    ratio: Tensor = _matched_ratio_op(t, keys, target, head_dim)
    return ratio


def differentiable_matched_ratio(t: Tensor, keys: Tensor, target: str, head_dim: int) -> Tensor:
    """`matched_ratio` by plain torch operations, which carry the gradient of the interpolation with respect to t."""
    grid = load()["log2_t"]
    first, step, points = grid["first"], grid["step"], grid["points"]
    lowest, highest = 2.0**first, 2.0 ** (first + step * (points - 1))
    lengths = load()["log2_length"]
    values = kept_values(target, head_dim, t.dtype, t.device)  # (lengths, points)
    column, across = _position(t.clamp(lowest, highest).log2(), first, step, points)
    row, down = _position(keys.clamp_min(1).log2(), lengths["first"], lengths["step"], lengths["points"])
    above, below = values[row], values[row + 1]  # (..., points)
    column = column[..., None]

    def along(line: Tensor) -> Tensor:
        left, right = line.gather(-1, column)[..., 0], line.gather(-1, column + 1)[..., 0]
        return left + across * (right - left)

    log2_ratio = (1 - down) * along(above) + down * along(below)
    # exp2 is not among the operators that every runtime has
    ratio = log2_ratio.exp2() if graphs.forms is None else (log2_ratio * math.log(2)).exp()
    return ratio * (highest / t.clamp_min(highest))


def _position(x: Tensor, first: float, step: float, points: int) -> tuple[Tensor, Tensor]:
    """Index of the grid point to the left, and how far x is towards the next, clamped to the grid."""
    x = ((x - first) / step).clamp(0, points - 1)
    # a NaN has no position: any index will do, since it stays NaN, and no other sample may suffer for it
    index = x.detach().nan_to_num(nan=0.0).floor().clamp(max=points - 2)
    return index.long(), x - index


kept: dict[tuple[str, int, torch.dtype, torch.device], Tensor] = {}


def kept_values(target: str, head_dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """log2 r over (lengths, T) as a tensor, made once: but what is made in a graph or a transform is of use only there."""
    if torch.compiler.is_compiling():
        return torch.tensor(_for_head_dim(target, head_dim), dtype=dtype, device=device)
    key = (target, head_dim, dtype, device)
    if key in kept:
        return kept[key]
    made = torch.tensor(_for_head_dim(target, head_dim), dtype=dtype, device=device)
    if type(made) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(made):
        kept[key] = made
    return made


@cache
def _for_head_dim(target: str, head_dim: int) -> list[list[float]]:
    """log2 r over (lengths, T) at this head size, interpolated in log2 d; beyond the table's sizes, by r's limit 2d."""
    table = load()
    log2_dims = numpy.log2(table["head_dims"])
    values = numpy.asarray(table["log2_ratio"][target])  # (head sizes, lengths, T)
    x = float(numpy.log2(head_dim))
    inside = float(numpy.clip(x, log2_dims[0], log2_dims[-1]))
    left = int(numpy.clip(numpy.searchsorted(log2_dims, inside, side="right") - 1, 0, len(log2_dims) - 2))
    weight = (inside - log2_dims[left]) / (log2_dims[left + 1] - log2_dims[left])
    result: list[list[float]] = ((1 - weight) * values[left] + weight * values[left + 1] + (x - inside)).tolist()
    return result


LIBRARY.define("matched_ratio(Tensor t, Tensor keys, str target, int head_dim) -> Tensor")
LIBRARY.impl("matched_ratio", differentiable_matched_ratio, "CompositeExplicitAutograd")
torch.library.register_fake("lln::matched_ratio", lambda t, *_: torch.empty_like(t), lib=LIBRARY)
_matched_ratio_op = torch.ops.lln.matched_ratio.default


def _batched_matched_ratio(info: Any, in_dims: tuple[int | None, ...], t: Tensor, keys: Tensor, *rest: Any) -> Any:
    t, keys = (
        x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)
        for x, d in zip((t, keys), in_dims[:2], strict=True)
    )
    return _matched_ratio_op(t, keys, *rest), 0


torch.library.register_vmap("lln::matched_ratio", _batched_matched_ratio, lib=LIBRARY)
