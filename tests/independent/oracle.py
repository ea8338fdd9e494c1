"""The operators in NumPy, float64 and log space, written from the equations alone: a second truth beside the library's own.

For one sample and head, over the keys that a row may see:

    LLN       L_ij = log sum_l exp(e_ijl),   e_ijl = w_l + alpha_l q_il + beta_l k_jl
    blocks    L_ij = scale q_i . k_j,        j in the block of i, blocks counted from the first key that counts
    both      P_ij = exp(L_ij - log sum_j exp L_ij),    out_i = sum_j P_ij v_j;   no key: zeros
    LLN+Diag  out = mix LLN + (1 - mix) blocks

and backward, with dL_ij = P_ij (dout_i . v_j - dout_i . out_i) and R_ijl = exp(e_ijl - L_ij):

    dv_j = sum_i P_ij dout_i
    LLN       da_il = sum_j dL_ij R_ijl,  db_jl = sum_i dL_ij R_ijl
              dq = alpha da,  dalpha = sum_i q_i da_i,  dw = sum_i da_i,  dk = beta db,  dbeta = sum_j k_j db_j
    blocks    dq_i = scale sum_j dL_ij k_j,  dk_j = scale sum_i dL_ij q_i
    LLN+Diag  dmix = sum dout * (LLN - blocks)

A causal sequence that is run in pieces has the results and the gradients of the whole: they flow through its states.

Beside each result stands the sum of the absolute values of the terms it is made of: rounding is counted in its last places.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Problem:
    """Float64 arrays in full shape; S sequences are the samples, or the parts of one packed sample."""

    q: Array  # (B, Hq, N, D)
    k: Array  # (B, Hk, M, D)
    v: Array  # (B, Hk, M, Dv)
    alpha: Array  # (S, Hq, D)
    beta: Array  # (S, Hk, D)
    bias: Array  # (S, Hq, D)
    counts: Array | None = None  # (B, M) bool
    edges: list[int] | None = None  # 0, n1, n1 + n2, ...: packed, B = 1
    pieces: list[int] | None = None  # lengths of the causal calls that make up the sequence
    causal: bool = False
    lln: bool = True
    blocks: bool = False
    block_size: int = 64
    scale: float = 1.0
    mix: Array = field(default_factory=lambda: np.ones(1))  # (Hq,), the share of LLN where there are both

    @property
    def groups(self) -> int:
        return self.q.shape[1] // self.k.shape[1]


@dataclass(frozen=True)
class Sequence:
    """One sequence: where it is, which pairs may meet, and through which pairs gradients reach keys."""

    index: int
    sample: int
    at: slice
    allowed: Array  # (N, M)
    together: Array  # (N, M), allowed and in one block


def sequences(x: Problem) -> Iterator[Sequence]:
    if x.edges is None:
        spans = [(i, i, slice(None)) for i in range(x.q.shape[0])]
    else:
        spans = [(i, 0, slice(a, b)) for i, (a, b) in enumerate(zip(x.edges[:-1], x.edges[1:], strict=True))]
    for index, sample, at in spans:
        rows, columns = np.arange(x.q.shape[2])[at], np.arange(x.k.shape[2])[at]
        counts = np.ones(len(columns), bool) if x.counts is None else x.counts[sample][at]
        allowed = np.repeat(counts[None], len(rows), axis=0)
        if x.causal:
            allowed &= rows[:, None] >= columns
        together = np.zeros_like(allowed)
        if x.blocks and counts.any():
            first = columns[0] + counts.argmax()
            block_of = (columns - first) // x.block_size
            together = allowed & (block_of[:, None] == block_of)
        yield Sequence(index, sample, at, allowed, together)


@dataclass
class Results:
    """Output and gradients by name, and the sizes of their terms, in the shapes of `Problem`."""

    values: dict[str, Array]
    sizes: dict[str, Array]

    @classmethod
    def zeros(cls, x: Problem) -> "Results":
        output = np.zeros((*x.q.shape[:3], x.v.shape[3]))
        shapes = {"q": x.q, "k": x.k, "v": x.v, "alpha": x.alpha, "beta": x.beta, "bias": x.bias, "mix": x.mix}
        both = [{"output": output.copy()} | {name: np.zeros(a.shape) for name, a in shapes.items()} for _ in range(2)]
        return cls(*both)

    def add(self, name: str, at: tuple, value: Array, size: Array) -> None:
        self.values[name][at] += value
        self.sizes[name][at] += size


def attend(x: Problem, dout: Array) -> Results:
    """Output and the gradients of sum(dout * output) for every differentiable argument."""
    results = Results.zeros(x)
    mixed = x.lln and x.blocks
    for s in sequences(x):
        if s.allowed.size == 0:
            continue
        q = x.q[s.sample][:, s.at]  # (Hq, N, D)
        k, v = (np.repeat(a[s.sample][:, s.at], x.groups, axis=0) for a in (x.k, x.v))  # (Hq, M, ...)
        if x.counts is not None:  # what does not count may hold anything
            k, v = (np.where(x.counts[s.sample][None, s.at, None], a, 0.0) for a in (k, v))
        upstream = dout[s.sample][:, s.at]
        share = x.mix[:, None, None] if mixed else np.ones((1, 1, 1))
        outputs = []
        if x.lln:
            outputs.append(_lln(x, s, q, k, v, share, upstream, results))
        if x.blocks:
            outputs.append(_blocks(x, s, q, k, v, 1 - share if mixed else share, upstream, results))
        if mixed:
            dmix = (upstream * (outputs[0] - outputs[1])).sum(axis=(1, 2))
            size = (np.abs(upstream) * (np.abs(outputs[0]) + np.abs(outputs[1]))).sum(axis=(1, 2))
            results.add("mix", (slice(None),), dmix, size)
    return results


def _lln(
    x: Problem, s: Sequence, q: Array, k: Array, v: Array, share: Array, upstream: Array, results: Results
) -> Array:
    alpha, bias = x.alpha[s.index][:, None], x.bias[s.index][:, None]  # (Hq, 1, D)
    beta = np.repeat(x.beta[s.index], x.groups, axis=0)[:, None]
    a, b = bias + alpha * q, beta * k
    terms = a[:, :, None] + b[:, None]  # e, (Hq, N, M, D)
    logits = np.where(s.allowed, log_sum_exp(terms), -np.inf)
    weights = softmax(logits)
    dout = share * upstream
    out, dlogits, sizes = _through_weights(s, weights, v, share, dout, x, results)
    part = np.exp(terms - np.where(s.allowed, logits, np.inf)[..., None])  # R, zero for pairs that do not meet
    da = np.einsum("hij,hijl->hil", dlogits, part)
    db = np.einsum("hij,hijl->hjl", dlogits, part)
    rows = sizes.sum(axis=2)[..., None]  # (Hq, N, 1)
    columns = sizes.sum(axis=1)[..., None]  # (Hq, M, 1)
    results.add("q", _rows(s), alpha * da, np.abs(alpha) * rows)
    results.add("k", _rows(s), _pool(beta * db, x), _pool(np.abs(beta) * columns, x))
    results.add("alpha", (s.index,), (q * da).sum(axis=1), (np.abs(q) * rows).sum(axis=1))
    results.add("bias", (s.index,), da.sum(axis=1), rows.sum(axis=1) * np.ones(q.shape[2]))
    results.add("beta", (s.index,), _pool((k * db).sum(axis=1), x), _pool((np.abs(k) * columns).sum(axis=1), x))
    return out


def _blocks(
    x: Problem, s: Sequence, q: Array, k: Array, v: Array, share: Array, upstream: Array, results: Results
) -> Array:
    weights = softmax(np.where(s.together, x.scale * (q @ k.swapaxes(1, 2)), -np.inf))
    dout = share * upstream
    out, dlogits, sizes = _through_weights(s, weights, v, share, dout, x, results)
    scale = x.scale
    results.add("q", _rows(s), scale * (dlogits @ k), abs(scale) * (sizes @ np.abs(k)))
    dk = scale * (dlogits.swapaxes(1, 2) @ q)
    results.add("k", _rows(s), _pool(dk, x), _pool(abs(scale) * (sizes.swapaxes(1, 2) @ np.abs(q)), x))
    return out


def _through_weights(
    s: Sequence, weights: Array, v: Array, share: Array, dout: Array, x: Problem, results: Results
) -> tuple[Array, Array, Array]:
    """out = P v; its part of the output and of dv; returns out, dL and the sizes of dL's terms."""
    out = weights @ v
    results.add("output", _rows(s), share * out, np.abs(share) * (weights @ np.abs(v)))
    dv, dv_size = weights.swapaxes(1, 2) @ dout, weights.swapaxes(1, 2) @ np.abs(dout)
    results.add("v", _rows(s), _pool(dv, x), _pool(dv_size, x))
    dlogits = weights * (dout @ v.swapaxes(1, 2) - (dout * out).sum(axis=2)[..., None])
    return out, dlogits, weights * (np.abs(dout) @ np.abs(v).swapaxes(1, 2))


def state(x: Problem) -> dict[str, Array]:
    """What a causal sequence leaves behind: c = max_j b_j, z = sum_j exp(b_j - c), S = sum_j exp(b_j - c) v_j^T."""
    b = x.beta[:, :, None] * x.k
    v = x.v
    if x.counts is not None:
        b, v = (np.where(x.counts[:, None, :, None], a, fill) for a, fill in ((b, -np.inf), (v, 0.0)))
    maximum = b.max(axis=2)  # (B, Hk, D)
    g = np.exp(b - finite(maximum)[:, :, None])
    return {"maximum": maximum, "normaliser": g.sum(axis=2), "summed": g.swapaxes(2, 3) @ v}


def log_sum_exp(x: Array) -> Array:
    """Over the last axis; -inf where all of it is."""
    largest = finite(x.max(axis=-1, keepdims=True))
    with np.errstate(divide="ignore"):
        return np.log(np.exp(x - largest).sum(axis=-1)) + largest[..., 0]


def softmax(logits: Array) -> Array:
    """Over the last axis; zeros where all of it is -inf."""
    return np.exp(logits - finite(log_sum_exp(logits))[..., None])


def finite(x: Array) -> Array:
    return np.where(x == -np.inf, 0.0, x)


def _rows(s: Sequence) -> tuple:
    return (s.sample, slice(None), s.at)


def _pool(x: Array, problem: Problem) -> Array:
    """The query heads of a key head add up."""
    return x.reshape(-1, problem.groups, *x.shape[1:]).sum(axis=1)
