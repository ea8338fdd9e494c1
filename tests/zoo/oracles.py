"""Every member's equation once more: literal, slow, position by position, independent of the package's code.

A mechanism's oracle takes (mechanism, q, k, v, counts, causal, x), for one sample and all heads: q, k, v (H, N, D),
counts (N,) bool, x (N, E). Only learned or drawn numbers are read from the module.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Weight = Callable[[int, int, int], Tensor]


def visible(i: int, counts: Tensor, causal: bool) -> list[int]:
    return [j for j in range(len(counts)) if counts[j] and (j <= i or not causal)]


def mean_by(weight: Weight, v: Tensor, counts: Tensor, causal: bool, rows: int) -> Tensor:
    """sum_j w_hij v_j / sum_j w_hij; zero without keys."""
    out = torch.zeros(v.shape[0], rows, v.shape[2], dtype=v.dtype)
    for h in range(v.shape[0]):
        for i in range(rows):
            seen = visible(i, counts, causal)
            if seen:
                w = torch.stack([weight(h, i, j) for j in seen])
                if w.sum() != 0:
                    out[h, i] = (w[:, None] * v[h, seen]).sum(0) / w.sum()
    return out


def softmax(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    return mean_by(lambda h, i, j: (q[h, i] @ k[h, j] / math.sqrt(q.shape[2])).exp(), v, counts, causal, q.shape[1])


def featured(feature: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def oracle(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
        return mean_by(lambda h, i, j: feature(q[h, i]) @ feature(k[h, j]), v, counts, causal, q.shape[1])

    return oracle


def relu(m: Any, q: Tensor, k: Tensor, *rest: Any) -> Tensor:
    if m.options.form == "linear":
        return featured(lambda t: t.clamp(min=0))(m, q, k, *rest)
    v, counts, causal, _ = rest
    return mean_by(lambda h, i, j: (q[h, i] @ k[h, j]).clamp(min=0), v, counts, causal, q.shape[1])


def quadratic(m: Any, q: Tensor, k: Tensor, *rest: Any) -> Tensor:
    if m.options.form == "linear":
        return featured(lambda t: t**2)(m, q, k, *rest)
    v, counts, causal, _ = rest
    return mean_by(lambda h, i, j: (q[h, i] @ k[h, j]) ** 2, v, counts, causal, q.shape[1])


def cosformer(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    def weight(h: int, i: int, j: int) -> Tensor:
        return q[h, i].clamp(min=0) @ k[h, j].clamp(min=0) * math.cos(math.pi / 2 * (i - j) / m.shape.max_length)

    return mean_by(weight, v, counts, causal, q.shape[1])


def performer(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    def feature(t: Tensor) -> Tensor:
        t = t / t.shape[0] ** 0.25
        return torch.stack([(w @ t - t @ t / 2).exp() for w in m.directions]) / math.sqrt(len(m.directions))

    return featured(feature)(m, q, k, v, counts, causal, x)


def rfa(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    def feature(h: int, t: Tensor) -> Tensor:
        angles = m.directions[h].T @ (t / t.norm())
        return torch.cat([angles.sin(), angles.cos()])

    def decay(h: int, i: int, j: int) -> Tensor:
        if m.gate is None:
            return torch.ones(())
        gates = torch.sigmoid(x @ m.gate.weight[h] + m.gate.bias[h])
        between = [gates[s] for s in range(j + 1, i + 1) if counts[s]]
        return (1 - gates[j]) * math.prod(between)

    return mean_by(
        lambda h, i, j: feature(h, q[h, i]) @ feature(h, k[h, j]) * decay(h, i, j), v, counts, causal, q.shape[1]
    )


def lln(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    from lln import match_moments

    if m.options.alpha is None and not causal:
        centred = m.options.subtract_mean_key
        alphas, betas = match_moments(
            q[None], k[None], key_mask=counts[None], target=m.options.target, center_keys=centred
        )
        if centred and counts.any():
            k = k - k[:, counts].mean(dim=1, keepdim=True)
    else:
        alphas = torch.full((1, len(q), 1, 1), m.alpha, dtype=q.dtype)
        betas = torch.full((1, len(q), 1, 1), m.beta, dtype=q.dtype)
    a, b = alphas.expand(1, *q.shape[:1], 1, q.shape[2])[0], betas.expand(1, *q.shape[:1], 1, q.shape[2])[0]
    return mean_by(lambda h, i, j: (a[h, 0] * q[h, i] + b[h, 0] * k[h, j]).exp().sum(), v, counts, causal, q.shape[1])


def block_diagonal(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    first, size = first_counting(counts), m.options.block_size

    def weight(h: int, i: int, j: int) -> Tensor:
        near = (i - first) // size == (j - first) // size
        return (q[h, i] @ k[h, j] / math.sqrt(q.shape[2])).exp() * near

    return mean_by(weight, v, counts, causal, q.shape[1])


def lln_diag(m: Any, *arguments: Any) -> Tensor:
    mix = m.options.mix
    return mix * lln(m, *arguments) + (1 - mix) * block_diagonal(m, *arguments)


def first_counting(counts: Tensor) -> int:
    return int(counts.nonzero()[0]) if counts.any() else 0


def rows_softmax(scores: Tensor) -> Tensor:
    shifted = (scores - scores.max(dim=-1, keepdim=True).values).exp()
    return shifted / shifted.sum(dim=-1, keepdim=True)


def nystromformer(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    out = torch.zeros_like(v[:, :1]).repeat(1, q.shape[1], 1)
    kept = counts.nonzero().flatten().tolist()
    if not kept:
        return out
    runs: dict[int, list[int]] = {}
    for rank, position in enumerate(kept):
        runs.setdefault(rank * m.options.landmarks // len(kept), []).append(position)
    for h in range(len(q)):
        q_mean = torch.stack([q[h, run].mean(0) for run in runs.values()])
        k_mean = torch.stack([k[h, run].mean(0) for run in runs.values()])
        scale = math.sqrt(q.shape[2])
        a = rows_softmax(q_mean @ k_mean.T / scale)
        z = a.T / (a.abs().sum(0).max() * a.abs().sum(1).max())
        eye = torch.eye(len(a), dtype=a.dtype)
        for _ in range(m.options.iterations):
            z = z @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z))) / 4
        out[h] = rows_softmax(q[h] @ k_mean.T / scale) @ z @ rows_softmax(q_mean @ k[h, kept].T / scale) @ v[h, kept]
        if m.convolution is not None:
            taps = m.convolution.weight[h, 0, :, 0]
            for i in range(q.shape[1]):
                for t, tap in enumerate(taps):
                    j = i + t - len(taps) // 2
                    if 0 <= j < len(counts) and counts[j]:
                        out[h, i] = out[h, i] + tap * v[h, j]
    return out


def linformer(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    first = first_counting(counts)
    out = torch.zeros_like(v[:, :1]).repeat(1, q.shape[1], 1)
    for h in range(len(q)):
        e, f = (p[h if len(p) > 1 else 0] for p in (m.project_keys, m.project_values))
        keys = sum((e[:, j - first, None] * k[h, j] for j in range(len(counts)) if counts[j]), torch.zeros(1))
        values = sum((f[:, j - first, None] * v[h, j] for j in range(len(counts)) if counts[j]), torch.zeros(1))
        if counts.any():
            out[h] = rows_softmax(q[h] @ keys.T / math.sqrt(q.shape[2])) @ values
    return out


def skyformer(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    out = torch.zeros_like(v[:, :1]).repeat(1, q.shape[1], 1)
    kept = counts.nonzero().flatten().tolist()
    if not kept:
        return out
    number = min(m.options.landmarks, 2 * len(kept))
    ranks = [int((s + float(m.places[s])) * 2 * len(kept) / number) for s in range(number)]

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * math.sqrt(q.shape[2])))

    for h in range(len(q)):
        tokens = torch.cat([q[h, kept], k[h, kept]])
        s = tokens[ranks]
        inverse = torch.inverse(kernel(s, s) + m.options.ridge * torch.eye(number, dtype=q.dtype))
        out[h] = kernel(q[h], s) @ inverse @ kernel(s, k[h, kept]) @ v[h, kept]
    return out


def reformer(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    """The union of the rounds as a set of keys for each query."""
    heads, length, dim = q.shape
    out = torch.zeros_like(v)
    for h in range(heads):
        seen: list[set[int]] = [set() for _ in range(length)]
        for rotation in m.rotations:
            bucket = []
            for i in range(length):
                digits, start = 0, 0
                for size in m.hashes:
                    part = q[h, i] @ rotation[:, start : start + size // 2]
                    digits = digits * size + int(torch.cat([part, -part]).argmax())
                    start += size // 2
                bucket.append(digits)
            order = sorted((i for i in range(length) if counts[i]), key=lambda i: (bucket[i], i))
            chunk = {i: place // m.options.chunk for place, i in enumerate(order)}
            for i in order:
                seen[i] |= {j for j in order if bucket[i] == bucket[j] and chunk[i] - chunk[j] in (0, 1)}
        for i in range(length):
            others = sorted(seen[i] - {i}) or sorted(seen[i])
            if others:
                keys = torch.stack([q[h, j] / q[h, j].norm() for j in others])
                out[h, i] = rows_softmax(keys @ q[h, i] / math.sqrt(dim)) @ v[h, others]
    return out


def longformer(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    special = counts.nonzero().flatten().tolist()[: m.options.global_tokens]

    def weight(h: int, i: int, j: int) -> Tensor:
        near = abs(i - j) <= m.options.window // 2 or i in special or j in special
        return (q[h, i] @ k[h, j] / math.sqrt(q.shape[2])).exp() * near

    return mean_by(weight, v, counts, causal, q.shape[1])


def width_norm(norm: Any, rows: Tensor) -> Tensor:
    """LayerNorm over the concatenated heads, (H, N, D) -> the same."""
    flat = rows.transpose(0, 1).flatten(1)
    flat = (flat - flat.mean(1, keepdim=True)) / (flat.var(1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    return (flat * norm.weight + norm.bias).unflatten(1, (len(rows), -1)).transpose(0, 1)


def transformer_ls(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    heads, length, dim = q.shape
    out = torch.zeros_like(v)
    kept = counts.nonzero().flatten()
    if not len(kept):
        return out
    first, width, number = first_counting(counts), m.options.window, m.options.projections
    weights = m.project.weight.unflatten(0, (heads, number))  # (H, r, E)
    p = torch.stack([rows_softmax(weights[h] @ x[kept].T) for h in range(heads)])  # (H, r, n)
    far_k, far_v = width_norm(m.far_norm, p @ k[:, kept]), width_norm(m.far_norm, p @ v[:, kept])
    near_k, near_v = width_norm(m.near_norm, k), width_norm(m.near_norm, v)
    for h in range(heads):
        for i in range(length):
            start = (i - first) // width * width + first
            near = [j for j in range(start - width // 2, start + width + width // 2) if 0 <= j < length and counts[j]]
            keys, values = torch.cat([near_k[h, near], far_k[h]]), torch.cat([near_v[h, near], far_v[h]])
            out[h, i] = rows_softmax(keys @ q[h, i] / math.sqrt(dim)) @ values
    return out


def width_rms(norm: Any, rows: Tensor) -> Tensor:
    flat = rows.transpose(0, 1).flatten(1)
    flat = flat / (flat.square().mean(1, keepdim=True) + 1e-8).sqrt() * norm.norm.weight
    return flat.unflatten(1, (len(rows), -1)).transpose(0, 1)


def transnormer(plus_one: bool) -> Callable[..., Tensor]:
    def feature(t: Tensor) -> Tensor:
        return torch.where(t > 0, t, torch.expm1(t)) + float(plus_one)

    def oracle(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
        if m.options.branch == "diag" and plus_one:
            return block_diagonal(m, q, k, v, counts, causal, x)
        first, out = first_counting(counts), torch.zeros_like(v)
        for h in range(len(q)):
            for i in range(q.shape[1]):
                for j in visible(i, counts, causal):
                    if m.options.branch == "norm":
                        weight = feature(q[h, i]) @ feature(k[h, j])
                    else:
                        near = (i - first) // m.options.block_size == (j - first) // m.options.block_size
                        weight = (q[h, i] @ k[h, j] / math.sqrt(q.shape[2])).clamp(min=0) * near
                    out[h, i] = out[h, i] + weight * v[h, j]
        return width_rms(m.norm, out)

    return oracle


ORACLES: dict[str, Callable[..., Tensor]] = {
    "block_diagonal": block_diagonal,
    "cosformer": cosformer,
    "elu": featured(lambda t: torch.where(t > 0, t + 1, t.exp())),
    "linformer": linformer,
    "lln": lln,
    "lln_diag": lln_diag,
    "longformer": longformer,
    "nystromformer": nystromformer,
    "performer": performer,
    "quadratic": quadratic,
    "reformer": reformer,
    "relu": relu,
    "rfa": rfa,
    "skyformer": skyformer,
    "softmax": softmax,
    "transformer_ls": transformer_ls,
    "transnormer_t1": transnormer(plus_one=False),
    "transnormer_t2": transnormer(plus_one=True),
}


def flash(layer: Any, x: Tensor, counts: Tensor, causal: bool) -> Tensor:
    """x (N, E) -> the update, unit by unit."""
    start, first = x, first_counting(counts)
    for norm, unit in zip(layer.norms, layer.units, strict=True):
        wide, _, shared = unit.sizes
        projected = F.silu(norm(x) @ unit.project_in.weight.T + unit.project_in.bias)
        u, v, z = projected[:, :wide], projected[:, wide : 2 * wide], projected[:, 2 * wide :]
        assert z.shape[1] == shared
        q, k, q_far, k_far = (z * g + b for g, b in zip(unit.scale, unit.offset, strict=True))
        mixed = torch.zeros_like(u)
        for i in range(len(x)):
            for j in visible(i, counts, causal):
                here, there = (i - first) // unit.chunk, (j - first) // unit.chunk
                weight = torch.zeros(())
                if here == there:
                    weight = weight + F.relu(q[i] @ k[j] / unit.chunk + unit.bias[i - j + unit.chunk - 1]) ** 2
                if not causal or there < here:
                    weight = weight + q_far[i] @ k_far[j] / layer.shape.max_length
                mixed[i] = mixed[i] + weight * v[j]
        x = x + (u * mixed) @ unit.project_out.weight.T + unit.project_out.bias
    return x - start


def tnn(layer: Any, x: Tensor, counts: Tensor, causal: bool) -> Tensor:
    gate, v = F.silu(layer.mix_in(layer.mix_norm(x))).chunk(2, dim=-1)
    mixed = torch.zeros_like(v)
    for i in range(len(x)):
        for j in visible(i, counts, causal):
            coefficient = layer.encoder.network(torch.tensor([float(i - j)], dtype=x.dtype))
            mixed[i] = mixed[i] + coefficient * layer.options.decay ** abs(i - j) * v[j]
    added = layer.mix_out(gate * mixed)
    left, right = layer.glu_in(layer.glu_norm(x + added)).chunk(2, dim=-1)
    return added + layer.glu_out(F.silu(left) * right)


LAYER_ORACLES: dict[str, Callable[..., Tensor]] = {"flash": flash, "tnn": tnn}
