"""The equations of the members since 2023 once more, as in `oracles`: literal, slow, position by position."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lln import match_moments
from tests.zoo.oracles import first_counting, mean_by, visible


def hedgehog(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    def feature(side: Any, h: int, t: Tensor) -> Tensor:
        mapped = torch.stack([side.weight[h, row] @ t + side.bias[h, 0, row] for row in range(len(t))])
        return torch.cat([mapped.exp(), (-mapped).exp()])

    return mean_by(
        lambda h, i, j: feature(m.query_map, h, q[h, i]) @ feature(m.key_map, h, k[h, j]), v, counts, causal, q.shape[1]
    )


def elu_plus_one(t: Tensor) -> Tensor:
    return torch.where(t > 0, t + 1, t.exp())


def mala(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    out = torch.zeros_like(v)
    for h in range(len(q)):
        for i in range(q.shape[1]):
            seen = visible(i, counts, causal)
            n = len(seen)
            s = [elu_plus_one(q[h, i]) @ elu_plus_one(k[h, j]) / (n * math.sqrt(q.shape[2])) for j in seen]
            z = sum(s)
            for j, score in zip(seen, s, strict=True):
                out[h, i] = out[h, i] + ((1 + 1 / z) * score - z / n) * v[h, j]
    return out


def nalaformer(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    def weight(h: int, i: int, j: int) -> Tensor:
        length = q[h, i].norm()
        power = 3 * (0.5 + torch.tanh(length))
        return sum(
            (abs(a) / length) ** power * abs(b) ** 3
            for a, b in zip(q[h, i], k[h, j], strict=True)
            if (a > 0 and b > 0) or (a < 0 and b < 0)
        ) + torch.zeros(())

    gate = (x @ m.gate.weight.T + m.gate.bias).unflatten(1, (len(q), -1)).transpose(0, 1)
    return mean_by(weight, v, counts, causal, q.shape[1]) * gate / (1 + (-gate).exp())


def polaformer(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    if m.options.form == "nalaformer":
        return nalaformer(m, q, k, v, counts, causal, x)
    power = 1 + m.options.power_range / (1 + (-m.power_logit).exp())

    def positive(h: int, t: Tensor) -> Tensor:
        return t.clamp(min=0) ** power[h, 0]

    def same(h: int, i: int, j: int) -> Tensor:
        plus = positive(h, q[h, i]) @ positive(h, k[h, j])
        return plus + positive(h, -q[h, i]) @ positive(h, -k[h, j])

    def opposite(h: int, i: int, j: int) -> Tensor:
        plus = positive(h, q[h, i]) @ positive(h, -k[h, j])
        return plus + positive(h, -q[h, i]) @ positive(h, k[h, j])

    half = math.ceil(v.shape[2] / 2)
    parts = [
        mean_by(weight, part, counts, causal, q.shape[1])
        for weight, part in ((same, v[..., :half]), (opposite, v[..., half:]))
    ]
    gate = x @ m.gate.weight.T + m.gate.bias
    return torch.cat(parts, dim=-1) * gate.unflatten(1, (len(q), -1)).transpose(0, 1)


def agent(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    kept, out = counts.nonzero().flatten().tolist(), torch.zeros_like(v)
    if not kept:
        return out
    number = m.options.agents
    segments = [[i for r, i in enumerate(kept) if r * number // len(kept) == s] for s in range(number)]
    for h in range(len(q)):
        agents = [sum(q[h, i] for i in segment) / len(segment) for segment in segments if segment]
        collected = []
        for a in agents:
            weights = torch.stack([(a @ k[h, j] / math.sqrt(q.shape[2])).exp() for j in kept])
            collected.append((weights[:, None] * v[h, kept]).sum(0) / weights.sum())
        for i in range(q.shape[1]):
            weights = torch.stack([(q[h, i] @ a / math.sqrt(q.shape[2])).exp() for a in agents])
            out[h, i] = (weights[:, None] * torch.stack(collected)).sum(0) / weights.sum()
    return out


def lolcats(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    def feature(side: Any, h: int, t: Tensor) -> Tensor:
        mapped = side.weight[h] @ t + side.bias[h, 0]
        return torch.cat([mapped.exp() / mapped.exp().sum(), (-mapped).exp() / (-mapped).exp().sum()])

    def score(h: int, i: int, j: int) -> Tensor:
        return q[h, i] @ k[h, j] / math.sqrt(q.shape[2])

    def weight(h: int, i: int, j: int) -> Tensor:
        if abs(i - j) >= m.options.window:
            return feature(m.query_map, h, q[h, i]) @ feature(m.key_map, h, k[h, j])
        near = [score(h, i, n) for n in visible(i, counts, causal) if abs(i - n) < m.options.window]
        return (score(h, i, j) - max(near)).exp() / (1 + (-m.window_logit[h, 0, 0]).exp())

    return mean_by(weight, v, counts, causal, q.shape[1])


def gated_delta(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    """One position after the other, the state as a matrix."""
    assert causal
    heads, length, dim = q.shape
    out = torch.zeros_like(v)
    for h in range(heads):
        state = torch.zeros(dim, v.shape[2], dtype=v.dtype)
        for t in range(length):
            if counts[t]:
                write = 1 / (1 + (-(m.write.weight[h] @ x[t] + m.write.bias[h])).exp())
                rows = slice(h, h + 1) if m.options.gate == "head" else slice(h * dim, (h + 1) * dim)
                rate = (1 + (m.keep.weight[rows] @ x[t] + m.keep.bias[rows]).exp()).log() * m.log_rate[h].exp()
                kept = (-rate).flatten().exp()
                key = k[h, t] / k[h, t].norm()
                state = torch.diag(kept.expand(dim)) @ state
                state = state - write * torch.outer(key, key @ state) + write * torch.outer(key, v[h, t])
            if q[h, t].norm() > 0:
                out[h, t] = state.T @ (q[h, t] / q[h, t].norm())
    return out


def mhla(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    first = first_counting(counts)
    size = math.ceil(m.shape.max_length / m.options.blocks)

    def weight(h: int, i: int, j: int) -> Tensor:
        return m.mixture[(i - first) // size, (j - first) // size] * (q[h, i].clamp(min=0) @ k[h, j].clamp(min=0))

    return mean_by(weight, v, counts, causal, q.shape[1])


def sla(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    heads, length, dim = q.shape
    out = torch.zeros_like(v)
    blocks: dict[int, list[int]] = {}
    for j in range(length):
        if counts[j]:
            blocks.setdefault((j - first_counting(counts)) // m.options.block_size, []).append(j)
    critical = max(1, int(m.options.top * len(blocks)))
    negligible = int(m.options.bottom * len(blocks))
    for h in range(heads):
        for rows in blocks.values():
            asked = sum(q[h, i] for i in rows) / len(rows)
            order = sorted(
                blocks, key=lambda b: float((-asked @ sum(k[h, j] for j in blocks[b])).detach()) / len(blocks[b])
            )
            near = [j for b in order[:critical] for j in blocks[b]]
            far = [j for b in order[critical : len(order) - negligible] for j in blocks[b]]
            for i in rows:
                exact = torch.stack([(q[h, i] @ k[h, j] / math.sqrt(dim)).exp() for j in near])
                out[h, i] = (exact[:, None] * v[h, near]).sum(0) / exact.sum()
                linear = torch.zeros_like(v[h, i])
                if far:
                    weights = torch.stack([torch.softmax(q[h, i], 0) @ torch.softmax(k[h, j], 0) for j in far])
                    linear = (weights[:, None] * v[h, far]).sum(0) / weights.sum()
                out[h, i] = out[h, i] + m.projection.weight @ linear + m.projection.bias
    return out


def near_far(m: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, causal: bool, x: Tensor) -> Tensor:
    out, first, o, scale = torch.zeros_like(v), first_counting(counts), m.options, q.shape[2] ** -0.5
    centre = k[:, counts].mean(dim=1) if counts.any() else k[:, 0]
    if causal or o.alpha is not None:
        a, b, centre = [m.alpha] * len(q), [m.beta] * len(q), 0 * centre
    else:
        found = match_moments(q[None], k[None], key_mask=counts[None], target=o.target, center_keys=True)
        a, b = (t.flatten().tolist() for t in found)
    for h in range(len(q)):
        for i in range(q.shape[1]):
            near, far = [], []
            for j in visible(i, counts, causal):
                blocks = abs((i - first) // o.block_size - (j - first) // o.block_size)
                (near if blocks <= o.neighbours or j - first < o.first_tokens else far).append(j)
            if i < first or not near + far:
                continue
            weights = torch.stack([(scale * q[h, i] @ k[h, j]).exp() for j in near]) if near else torch.zeros(0)
            exact = (weights[:, None] * v[h, near]).sum(0) / weights.sum() if near else torch.zeros_like(v[h, 0])
            if not far:
                out[h, i] = exact
                continue
            n, keys, values = len(far), k[h, far], v[h, far]
            spread = sum(scale**2 * q[h, i, c] ** 2 * keys[:, c].var(correction=0) for c in range(q.shape[2]))
            excess, tilt = spread / 2, 1.0
            if spread > 2 * math.log(n):
                excess, tilt = (2 * spread * math.log(n)).sqrt() - math.log(n), (2 * math.log(n) / spread).sqrt()
            mass = n * (scale * q[h, i] @ keys.mean(0) + excess).exp()
            share = mass / (mass + weights.sum())
            slope = sum(tilt * scale * (key - keys.mean(0)) @ q[h, i] * (value - values.mean(0)) / n
                        for key, value in zip(keys, values, strict=True))  # fmt: skip
            kernel = torch.stack([(a[h] * q[h, i] + b[h] * (key - centre[h])).exp().sum() for key in keys])
            far_lln = (kernel[:, None] * values).sum(0) / kernel.sum()
            w = m.weights[h]
            out[h, i] = (1 - share + share * w[0]) * exact
            out[h, i] += share * (w[1] * far_lln + w[2] * values.mean(0) + w[3] * slope)
    return out


ORACLES_2024: dict[str, Callable[..., Tensor]] = {
    "agent": agent,
    "gated_delta": gated_delta,
    "hedgehog": hedgehog,
    "lolcats": lolcats,
    "mala": mala,
    "mhla": mhla,
    "near_far": near_far,
    "polaformer": polaformer,
    "sla": sla,
}
