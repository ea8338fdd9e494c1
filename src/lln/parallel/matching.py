"""Statistics and matched alpha and beta of a sequence that several processes hold: those of the whole, on every process.

Sums are gathered in float64 and added in the order of ranks; samples are gathered as they are. Cuts change nothing.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lln.ops.moments import Entropies, EntropyOperands, Matched, MatchOperands, Moments, Operands, moments
from lln.ops.moments.formula import degrees_of_freedom, match_statistics
from lln.ops.moments.plain import matched_by
from lln.ops.moments.search import entropies_on_sample
from lln.ops.moments.statistics import statistics_of
from lln.ops.stretches import held_by
from lln.parallel.agreement import agree
from lln.parallel.processes import Processes
from lln.parallel.sampling import SamplerOver, are_the_same_tokens


def moments_over(processes: Processes, x: Operands, backend: str) -> Moments:
    """Sums over all stretches."""
    if x.x.shape[2] == 0:  # an operation takes one position at least
        sequences = x.x.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
        nobody = torch.zeros(sequences, 1, dtype=torch.bool, device=x.x.device)
        x = Operands(x.x.new_zeros(sequences, x.x.shape[1], 1, x.x.shape[3]), nobody)
    return sums_over(processes, moments(x, backend))


def sums_over(processes: Processes, own: Moments) -> Moments:
    """Differentiable: every process has a part of the gradient of the sums, and receives the sum of the parts."""
    shape = own.total.shape
    flat = torch.cat([own.count.to(own.total.dtype), own.total.flatten(), own.squares.flatten()])
    count, total, squares = _Sum.apply(flat, processes).split([len(own.count), own.total.numel(), own.squares.numel()])
    return Moments(count, total.view(shape), squares.view(shape))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, processes: Processes) -> Tensor:
        ctx.processes = processes
        return _in_order(processes.gather(x))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _in_order(ctx.processes.gather(grads[0])), None


def _in_order(parts: Tensor) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def same_tokens_over(processes: Processes, q: Tensor, k: Tensor) -> bool:
    queries, keys = processes.gather(torch.tensor([q.shape[2], k.shape[2]], device=q.device)).T.tolist()
    return are_the_same_tokens(queries, keys)


def match_over(processes: Processes, x: MatchOperands, backend: str) -> Matched:
    """alpha and beta of the whole."""
    lengths = _agree(processes, f"match_moments by {x.method}, {x.target} per {x.per}", x)
    if x.method == "sample":
        return matched_by(_sampler(processes, lengths, x), x)
    with held_by(processes):
        statistics = statistics_of(
            x.q, x.k, per=x.per, key_mask=x.key_mask, cu_seqlens=x.cu_seqlens, center_keys=x.center_keys,
            ddof=degrees_of_freedom(x.target),
        )  # fmt: skip
    alpha, beta = match_statistics(statistics, x.q.shape[-1], target=x.target, scale=x.scale, detach=False)
    return Matched(alpha, beta, torch.full_like(alpha, math.nan)[..., None].repeat(1, 1, 2))


def entropies_over(processes: Processes, x: EntropyOperands, backend: str) -> Entropies:
    """Of the whole, on a sample of it."""
    lengths = _agree(processes, "row entropies", x)
    return Entropies(*entropies_on_sample(_sampler(processes, lengths, x), x.alpha, x.beta, x.scale))


def _sampler(processes: Processes, lengths: list[list[int]], x: MatchOperands | EntropyOperands) -> SamplerOver:
    return SamplerOver(processes, lengths, x.q, x.k, x.key_mask, x.cu_seqlens, x.scale, x.center_keys)


def _agree(processes: Processes, operation: str, x: MatchOperands | EntropyOperands) -> list[list[int]]:
    """How many queries and keys each process has, and whether it has a mask."""
    sequences = 0 if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
    told = (x.q.shape[2], x.k.shape[2], x.key_mask is not None)
    return agree(processes, operation, x.q, x.k, sequences=sequences, told=told)


FORMS: dict[str, Callable[..., Any]] = {
    "moments": moments_over,
    "sums": sums_over,
    "same tokens": same_tokens_over,
    "match": match_over,
    "entropies": entropies_over,
}
