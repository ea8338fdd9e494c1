"""The stable formula as anyone would write it in PyTorch, with autograd's backward: the measure of what rounding does.

    c_i = max_{j <= i} beta k_j  (all j when not causal),   m_i = max_l (alpha q_il + w_l + c_il)
    out_i = sum_l f_il sum_j g_ijl v_j / sum_l f_il sum_j g_ijl,   f = exp(alpha q + w + c - m),  g = exp(beta k - c)

and inside blocks the softmax of scale q . k. An exponent can be written in several ways, none better than the others: that of f
product first, or fused (the product is not rounded); the score as a product of matrices scaled afterwards, or as the sum of
the products of scaled queries. Equal keys have equal rounding errors, which cancel, only as long as they are computed in one
way; kernels have whole vectors and remainders. So in the last two ways a coin decides for each exponent of f between its
forms, and scores are off by a unit in the last place of the sum of the absolute values of their terms: up or down as a coin
says, or the largest of a row up and the others down. Which is luckiest changes with the seed: the largest of their errors is
the measure.
"""

import torch
from torch import Tensor

from tests.independent import oracle

WAYS = ("one", "other", "coin", "adverse")


def attend(x: oracle.Problem, inputs: dict[str, Tensor], way: str) -> Tensor:
    """(B, Hq, N, Dv) from tensors of one dtype, in the full shapes of `oracle.Problem`."""
    q = inputs["q"]
    out = [torch.zeros(*q.shape[1:3], inputs["v"].shape[3], dtype=q.dtype) for _ in range(q.shape[0])]
    for s in oracle.sequences(x):
        if s.allowed.size == 0:
            continue
        parts = {name: inputs[name][s.sample][:, s.at] for name in ("q", "k", "v")}
        if x.counts is not None:
            counts = torch.from_numpy(x.counts[s.sample])[None, s.at, None]
            parts |= {name: torch.where(counts, parts[name], 0.0) for name in ("k", "v")}
        parts |= {name: parts[name].repeat_interleave(x.groups, dim=0) for name in ("k", "v")}
        branches = []
        if x.lln:
            scales = {name: inputs[name][s.index][:, None] for name in ("alpha", "beta", "bias")}
            scales["beta"] = scales["beta"].repeat_interleave(x.groups, dim=0)
            branches.append(_lln(x, s, **parts, **scales, way=way))
        if x.blocks:
            branches.append(_blocks(x, s, **parts, way=way))
        rows = branches[0] if len(branches) == 1 else torch.lerp(*branches[::-1], inputs["mix"][:, None, None])
        out[s.sample] = torch.cat([out[s.sample][:, : s.at.start or 0], rows, _after(out[s.sample], s.at)], dim=1)
    return torch.stack(out)


def _after(rows: Tensor, at: slice) -> Tensor:
    return rows[:, rows.shape[1] if at.stop is None else at.stop :]


def _lln(
    x: oracle.Problem, s: oracle.Sequence, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, bias: Tensor,
    way: str,
) -> Tensor:  # fmt: skip
    allowed = torch.from_numpy(s.allowed)
    b = beta * k
    pairs = b[:, None]  # (Hq, 1, M, D)
    if x.causal:
        pairs = torch.where(allowed[..., None], pairs, -torch.inf)  # (Hq, N, M, D)
    else:
        pairs = torch.where(allowed[:1, :, None], pairs, -torch.inf)  # (Hq, 1, M, D): the same for every row
    c = pairs.detach().amax(dim=2)  # (Hq, N or 1, D)
    c = torch.where(c == -torch.inf, 0.0, c)
    exponent, fused = alpha * q + bias + c, torch.addcmul(bias + c, alpha, q)
    if way != "one":
        exponent = fused if way == "other" else torch.where(_heads_or_tails(fused), exponent, fused)
    f = (exponent - exponent.detach().amax(dim=-1, keepdim=True)).exp()  # (Hq, N, D)
    g = (pairs - c[:, :, None]).exp()
    if x.causal:
        weights = (g @ f[..., None])[..., 0]  # (Hq, N, M)
        numerator, denominator = weights @ v, weights.sum(dim=-1, keepdim=True)
    else:
        numerator, denominator = f @ (g[:, 0].mT @ v), f @ g.sum(dim=2).mT
    return numerator / torch.where(denominator == 0, 1.0, denominator)


def _blocks(x: oracle.Problem, s: oracle.Sequence, q: Tensor, k: Tensor, v: Tensor, way: str) -> Tensor:
    together = torch.from_numpy(s.together)

    def score(k: Tensor) -> Tensor:
        one, other = x.scale * (q @ k.mT), ((x.scale * q)[:, :, None] * k[:, None]).cumsum(dim=-1)[..., -1]
        if way in ("coin", "adverse"):
            with torch.no_grad():
                unit = torch.finfo(q.dtype).eps * (abs(x.scale) * (q.abs() @ k.abs().mT))
                highest = torch.where(together, one, -torch.inf).argmax(dim=-1, keepdim=True)
                first = torch.zeros_like(one, dtype=torch.bool).scatter(-1, highest, True)
            return one + torch.where(_heads_or_tails(one) if way == "coin" else first, unit, -unit)
        return one if way == "one" else other

    scores = score(k)
    scores = torch.where(together, scores, -torch.inf)
    largest = scores.detach().amax(dim=-1, keepdim=True)
    weights = (scores - torch.where(largest == -torch.inf, 0.0, largest)).exp()
    denominator = weights.sum(dim=-1, keepdim=True)
    weights = weights / torch.where(denominator == 0, 1.0, denominator)
    return weights @ v


def _heads_or_tails(x: Tensor) -> Tensor:
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.5


def state(x: oracle.Problem, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    b, v = inputs["beta"][:, :, None] * inputs["k"], inputs["v"]
    if x.counts is not None:
        counts = torch.from_numpy(x.counts)[:, None, :, None]
        b, v = torch.where(counts, b, -torch.inf), torch.where(counts, v, 0.0)
    maximum = b.amax(dim=2)
    g = (b - torch.where(maximum == -torch.inf, 0.0, maximum)[:, :, None]).exp()
    return {"maximum": maximum, "normaliser": g.sum(dim=2), "summed": g.mT @ v}
