"""How the error of float32 attention grows with the length of its sums: outputs, gradients and decoding.

Two kinds of input, one head. Constant (q = k = 0.3, v = 0.1): every feature is 1 and every sum is n equal terms, so that all
roundings go the same way. Gaussian: they go either way. The truth is `chunked` in float64, itself checked against the oracle.

Measures. Outputs: the largest error over max|v|. Gradients: the root mean square of the error over that of the gradient at
that length. Their largest errors are given beside: the first tokens of a causal sequence are seen by all others, so that their
gradients stay of order 1 while the mean square falls as log N / N; the largest error over the mean then grows, however one
sums. With constant values the gradients of all but v vanish: their errors are taken over the size of the terms that cancel.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lln.attention import lln_attention
from lln.ops.lln import Operands, oracle

NAMES = ("q", "k", "v", "alpha", "beta", "bias")
KINDS = ("constant", "Gaussian")
Method = Callable[..., Tensor]


@dataclass(frozen=True)
class Plan:
    lengths: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    plain_longest: int = 100_000  # plain torch keeps the running sums of all positions
    tokens: int = 100_000  # Gaussian inputs are drawn again until there are so many, up to 8 times: 16 numbers are few
    decoded: int = 20_000
    dim: int = 16
    oracle_length: int = 4_096
    oracle_dim: int = 4  # autograd through the oracle keeps N x N x dim numbers
    seed: int = 0


@dataclass(frozen=True)
class Inputs:
    """Of `lln_attention`, and the gradient that comes back."""

    tensors: tuple[Tensor, ...]  # in the order of NAMES
    upstream: Tensor
    causal: bool

    def double(self) -> "Inputs":
        return Inputs(tuple(x.double() for x in self.tensors), self.upstream.double(), self.causal)


def draw(kind: str, length: int, causal: bool, dim: int, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    rows, scale = (1, 1, length, dim), torch.full((1, 1, 1, dim), 2.0)
    if kind == "constant":
        q, k, v, upstream = (torch.full(rows, x) for x in (0.3, 0.3, 0.1, 1.0))
    else:
        q, k, v, upstream = (torch.randn(rows, generator=generator) for _ in range(4))
    return Inputs((q, k, v, scale, scale.clone(), torch.zeros_like(scale)), upstream, causal)


def plain(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, bias: Tensor, *, is_causal: bool) -> Tensor:
    """Eq. 8 as one would write it down in torch, stable for these inputs; causal by cumulative sums."""
    keys = beta * k
    c = keys.amax(dim=2, keepdim=True).detach()
    queries = alpha * q + bias + c
    f, g = (queries - queries.amax(dim=-1, keepdim=True).detach()).exp(), (keys - c).exp()
    if not is_causal:
        return (f @ (g.mT @ v)) / (f @ g.sum(dim=2)[..., None])
    summed = (g[..., None] * v[..., None, :]).cumsum(dim=2)  # (1, 1, N, D, Dv)
    return (f[..., None, :] @ summed)[..., 0, :] / (f * g.cumsum(dim=2)).sum(dim=-1, keepdim=True)


def backend(name: str) -> Method:
    def attend(
        q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, bias: Tensor, *, is_causal: bool
    ) -> Tensor:
        return lln_attention(q, k, v, alpha, beta, feature_bias=bias, is_causal=is_causal, backend=name)

    return attend


METHODS: dict[str, Method] = {"native": backend("native"), "chunked": backend("chunked"), "plain torch": plain}


def results(method: Method, x: Inputs) -> list[Tensor]:
    """The output and the six gradients."""
    tensors = [t.clone().requires_grad_() for t in x.tensors]
    out = method(*tensors, is_causal=x.causal)
    return [out.detach(), *torch.autograd.grad(out, tensors, x.upstream)]


def run(plan: Plan, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """All measurements of `lln bench sums`."""
    on_progress(f"truth against the oracle, N = {plan.oracle_length:,}")
    checked = {kind: check_truth(plan, kind) for kind in KINDS}
    rows = []
    for kind in KINDS:
        for causal in (False, True):
            for length in plan.lengths:
                on_progress(f"{kind}, {'causal' if causal else 'bidirectional'}, N = {length:,}")
                rows += measure(plan, kind, length, causal)
    decoding = []
    for kind in KINDS:
        for name in ("native", "chunked"):
            on_progress(f"decoding {plan.decoded:,} {kind} tokens, {name}")
            decoding.append(
                {"backend": name, "inputs": kind, "tokens": plan.decoded, "output": decode(plan, kind, name)}
            )
    return {
        "plan": asdict(plan),
        "truth_against_oracle": checked,
        "errors": rows,
        "growth": growth(rows),
        "decoding": decoding,
    }


def check_truth(plan: Plan, kind: str) -> dict[str, float]:
    """The largest error of chunked in float64, relative to the largest number of each result, over both directions."""
    worst: dict[str, float] = {}
    for causal in (False, True):
        x = draw(kind, plan.oracle_length, causal, plan.oracle_dim, plan.seed).double()
        found, true = results(METHODS["chunked"], x), results(_oracle, x)
        sizes = _term_sizes(x, true)
        for name, a, b, size in zip(("output", *NAMES), found, true, sizes, strict=True):
            worst[name] = max(worst.get(name, 0.0), float((a - b).abs().max()) / size)
    return worst


def _oracle(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, bias: Tensor, *, is_causal: bool) -> Tensor:
    x = Operands(q, k, v, alpha[:, :, 0], beta[:, :, 0], bias[:, :, 0], is_causal=is_causal)
    return oracle.forward(x).out


def measure(plan: Plan, kind: str, length: int, causal: bool) -> list[dict[str, Any]]:
    """Every method's errors at one length: the mean square over the draws, and the largest of all."""
    draws = 1 if kind == "constant" else max(1, min(8, plan.tokens // length))
    names = [name for name in METHODS if name != "plain torch" or length <= plan.plain_longest]
    found: dict[str, list[Errors]] = {name: [] for name in names}
    for seed in range(plan.seed, plan.seed + draws):
        x = draw(kind, length, causal, plan.dim, seed)
        true = results(METHODS["chunked"], x.double())
        sizes = _term_sizes(x, true)
        for name in names:
            found[name].append(Errors.of(results(METHODS[name], x), true, sizes))
    return [
        {
            "backend": name, "inputs": kind, "causal": causal, "length": length, "draws": draws,
            "output": max(errors.largest[0] for errors in all_),
            "gradients": {of: _mean_square([e.rms[i] for e in all_]) for i, of in enumerate(NAMES, start=1)},
            "largest": {of: max(e.largest[i] for e in all_) for i, of in enumerate(NAMES, start=1)},
        }
        for name, all_ in found.items()
    ]  # fmt: skip


@dataclass(frozen=True)
class Errors:
    """Of the output and the six gradients, each over its size."""

    rms: list[float]
    largest: list[float]

    @staticmethod
    def of(found: list[Tensor], true: list[Tensor], sizes: list[float]) -> "Errors":
        errors = [(a.double() - b) / size for a, b, size in zip(found, true, sizes, strict=True)]
        return Errors([_rms(x) for x in errors], [float(x.abs().max()) for x in errors])


def _mean_square(values: list[float]) -> float:
    return math.sqrt(sum(x * x for x in values) / len(values))


def _term_sizes(x: Inputs, true: list[Tensor]) -> list[float]:
    """What errors are measured in: max|v|, the gradients' root mean squares or, where they vanish, their terms' size.

    With p_i = dout_i . out_i and r_j = dv_j . v_j, what cancels in dq_i and dk_j is of the size of alpha p_i and beta r_j.
    """
    q, k, v, alpha, beta, _ = (t.double() for t in x.tensors)
    out, dv = true[0], true[3]
    p, r = (x.upstream.double() * out).sum(dim=-1, keepdim=True), (dv * v).sum(dim=-1, keepdim=True)
    terms = (alpha * p, beta * r, dv, (q * p).abs().sum(dim=2), (k * r).abs().sum(dim=2), p.abs().sum(dim=2))
    constant = bool((v == v[:, :, :1]).all())
    sizes = [_rms(term if constant else gradient) for term, gradient in zip(terms, true[1:], strict=True)]
    return [float(v.abs().max()), *sizes]


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


@torch.no_grad()
def decode(plan: Plan, kind: str, name: str) -> float:
    """Largest error over max|v| of tokens decoded one at a time."""
    x = draw(kind, plan.decoded, True, plan.dim, plan.seed)
    q, k, v, alpha, beta, _ = x.tensors
    attend = partial(lln_attention, is_causal=True, return_state=True)
    state, rows = None, []
    for i in range(plan.decoded):
        one = slice(i, i + 1)
        out, state = attend(q[:, :, one], k[:, :, one], v[:, :, one], alpha, beta, state=state, backend=name)
        rows.append(out)
    q, k, v, alpha, beta, _ = x.double().tensors
    true = lln_attention(q, k, v, alpha, beta, is_causal=True, backend="chunked")
    return float((torch.cat(rows, dim=2).double() - true).abs().max() / v.abs().max())


def growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Errors at the longest length over those at the shortest, the goal being at most 2."""
    found = []
    keys = {(row["backend"], row["inputs"], row["causal"]) for row in rows}
    for name, kind, causal in sorted(keys):
        same = [row for row in rows if (row["backend"], row["inputs"], row["causal"]) == (name, kind, causal)]
        first, last = (pick(same, key=lambda row: row["length"]) for pick in (min, max))
        gradients = {of: _ratio(last["gradients"][of], first["gradients"][of]) for of in NAMES}
        found.append(
            {
                "backend": name, "inputs": kind, "causal": causal, "lengths": [first["length"], last["length"]],
                "output": _ratio(last["output"], first["output"]), "gradients": gradients,
            }
        )  # fmt: skip
    return found


def _ratio(last: float, first: float) -> float | None:
    """None where both are exact."""
    return last / first if first else None if not last else float("inf")
