"""One sequence over several processes (`lln.parallel`): memory, traffic, losses and time, measured with gloo on this machine.

A small encoder of bytes learns to fill in masked ones, one sequence of N tokens a step, cut over P processes; each runs one
thread. Every process tells the peak of its memory, what it sent, and its part of the loss. The peak is that of the resident set
over all steps, beyond what a process has after a step on a short sequence: model, libraries, and what they keep for
themselves. It is not compared with what is there before a long step, which may still be held by whoever freed it.
Attention alone is timed, forward and backward, in rounds that alternate between one process and two, and once run on a very
long sequence.
"""

import ctypes
import gc
import os
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import lln
import lln.parallel
from lln.measuring.memory import _M_MMAP_THRESHOLD, _status
from lln_lab.bench.parallel_plan import state_numbers

MASKED, BYTES = 256, 257


@dataclass(frozen=True)
class Plan:
    lengths: tuple[int, ...] = (262_144, 1_048_576)
    processes: tuple[int, ...] = (1, 2, 4)
    steps: int = 3
    width: int = 16
    heads: int = 2
    layers: int = 2
    timed_length: int = 262_144
    timed_heads: int = 4
    timed_dim: int = 32
    timed_rounds: int = 3
    short: int = 8192  # tokens of the step before memory is measured
    longest: int = 0  # tokens of attention alone over 4 processes, one head of 16
    seed: int = 0


class ByteEncoder(nn.Module):
    """Bytes in, bytes out; positions by sines, computed where they are needed."""

    rates: Tensor

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        torch.manual_seed(plan.seed)
        self.embedding = nn.Embedding(BYTES, plan.width)
        self.layers = nn.ModuleList(
            lln.LLNEncoderLayer(plan.width, plan.heads, 2 * plan.width, dropout=0.0) for _ in range(plan.layers)
        )
        self.head = nn.Linear(plan.width, 256)
        self.register_buffer("rates", 10_000.0 ** -torch.linspace(0, 1, plan.width // 2))

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None] * self.rates
        x = self.embedding(tokens) + torch.cat([angles.sin(), angles.cos()], dim=-1)
        for layer in self.layers:
            x = layer(x)
        return x

    def loss(self, tokens: Tensor, positions: Tensor, labels: Tensor, total: int) -> Tensor:
        """This stretch's part of the mean over the masked bytes; only those are looked up in the vocabulary."""
        x = self(tokens, positions)
        chosen = labels >= 0
        return F.cross_entropy(self.head(x[chosen]), labels[chosen], reduction="sum") / total


def text(length: int, step: int, seed: int) -> tuple[Tensor, Tensor]:
    """Words of a small vocabulary, with one byte in eight masked: inputs and labels (1, N)."""
    generator = torch.Generator().manual_seed(seed * 1000 + step)
    words = torch.randint(97, 123, (64, 7), generator=torch.Generator().manual_seed(seed))
    words = torch.cat([words, torch.full((64, 1), 32)], dim=1)
    order = torch.randint(64, (-(-length // 8),), generator=generator)
    tokens = words[order].flatten()[:length][None]
    masked = torch.rand(1, length, generator=generator) < 0.125
    return torch.where(masked, MASKED, tokens), torch.where(masked, tokens, -1)


def train(rank: int, size: int, plan: Plan, length: int) -> dict[str, Any]:
    from lln.parallel.traffic import Traffic

    group = dist.group.WORLD
    assert group is not None
    model = ByteEncoder(plan)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    start = {name: t.clone() for name, t in model.state_dict().items()}
    losses, peak, seconds, sent, before = [], 0, 0.0, [], 0
    for step, tokens_in_all in enumerate([plan.short, *[length] * plan.steps], -1):
        tokens, labels = text(tokens_in_all, step, plan.seed)
        total = int((labels >= 0).sum())
        tokens, labels = (lln.parallel.shard(t, 1, group).clone() for t in (tokens, labels))
        positions = lln.parallel.shard(torch.arange(tokens_in_all), 0, group).clone()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        started = time.perf_counter()
        with Traffic() as traffic, lln.parallel.context_parallel(group):
            loss = model.loss(tokens, positions, labels, total)
            losses.append(loss.item())
            optimiser.zero_grad()
            loss.backward()
        sent, seconds = traffic.sent, time.perf_counter() - started
        peak = max(peak, _status("VmHWM") - before)
        del loss, tokens, labels, positions
        lln.parallel.sum_gradients(model.parameters(), group)
        optimiser.step()
        if step < 0:
            model.load_state_dict(start)
            optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            losses, peak, before = [], 0, _status("VmRSS")
    states = [s.numbers for s in sent if s.dtype == torch.float32 and s.collective == "_allgather_base_"]
    return {
        "losses": losses, "peak_bytes": peak, "seconds": seconds, "states_sent": states,
        "other_bytes": sum(s.bytes for s in sent) - 4 * sum(states), "collectives": len(sent),
        "weights": sum(p.numel() for p in model.parameters()),
    }  # fmt: skip


def attend(rank: int, size: int, plan: Plan, length: int) -> dict[str, Any]:
    """Attention alone, forward and backward: wall-clock and CPU seconds, the least of some runs."""
    own = lln.parallel.shard(torch.empty(length), 0, dist.group.WORLD).shape[0]
    heads, dim, runs = (1, 16, 1) if length == plan.longest else (plan.timed_heads, plan.timed_dim, 5)
    torch.manual_seed(rank)
    q, k, v = (torch.randn(1, heads, own, dim).requires_grad_() for _ in range(3))
    walls, cpus = [], []
    for _ in range(runs + (runs > 1)):
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        out = lln.lln_attention(q, k, v, 1.0, 1.0, group=dist.group.WORLD)
        out.sum().backward()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        q.grad = k.grad = v.grad = None
    finite = bool(torch.isfinite(out).all())
    return {"wall_seconds": min(walls), "cpu_seconds": min(cpus), "finite": finite, "peak_bytes": _status("VmHWM")}


def over(size: int, job: Callable[..., dict[str, Any]], *arguments: Any) -> list[dict[str, Any]]:
    """`job(rank, size, *arguments)` on `size` processes of one thread; their results."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        spawn(_start, (size, port, folder, job, arguments), nprocs=size)
        return [torch.load(f"{folder}/{rank}", weights_only=True) for rank in range(size)]


def _start(rank: int, size: int, port: int, folder: str, job: Callable[..., dict[str, Any]], arguments: Any) -> None:
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 16)  # freed memory goes back at once, as in lln.measuring.memory
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo")
    found = job(rank, size, *arguments)
    torch.save(found, f"{folder}/{rank}")
    dist.destroy_process_group()


def run(plan: Plan, tell: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    training = []
    dim = plan.width // plan.heads
    formula = state_numbers(plan.heads, dim, dim)
    for length in plan.lengths:
        for size in plan.processes:
            tell(f"training on {length:,} tokens over {size}")
            found = over(size, train, plan, length)
            training.append({
                "tokens": length, "processes": size,
                "losses": [sum(f["losses"][step] for f in found) for step in range(plan.steps)],
                "peak_bytes": [f["peak_bytes"] for f in found], "seconds": max(f["seconds"] for f in found),
                "states_sent_a_step": sum(found[0]["states_sent"]), "states_formula": plan.layers * sum(formula),
                "other_bytes_a_step": found[0]["other_bytes"], "collectives_a_step": found[0]["collectives"],
                "weights": found[0]["weights"],
            })  # fmt: skip
    result: dict[str, Any] = {
        "title": "One sequence over several processes",
        "plan": asdict(plan),
        "training": training,
    }
    result["goals"] = _goals(training)
    result["attention"] = run_timed(plan, tell)
    return result


def run_timed(plan: Plan, tell: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """Attention alone, over one process and over two of one thread each: seconds of the slower one, the least of all rounds."""
    load = os.getloadavg()[0]
    rounds: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for number in range(plan.timed_rounds):
        for size, timed in rounds.items():
            tell(f"attention on {plan.timed_length:,} tokens over {size}, round {number + 1}")
            found = over(size, attend, plan, plan.timed_length)
            timed.append({kind: max(f[f"{kind}_seconds"] for f in found) for kind in ("wall", "cpu")})
    least = {size: {kind: min(t[kind] for t in timed) for kind in ("wall", "cpu")} for size, timed in rounds.items()}
    return {
        "title": "Attention alone, two processes of one thread against one",
        "tokens": plan.timed_length, "heads": plan.timed_heads, "head_size": plan.timed_dim, "seconds": least,
        "speed_up": {kind: least[1][kind] / least[2][kind] for kind in ("wall", "cpu")},
        "load_before": load, "load_after": os.getloadavg()[0],
    }  # fmt: skip


def run_longest(plan: Plan) -> dict[str, Any]:
    """Attention alone on a very long sequence: that it can be done, and what it takes."""
    found = over(4, attend, plan, plan.longest)
    return {
        "title": "Attention alone on a very long sequence over four processes", "plan": asdict(plan),
        "tokens": plan.longest, "processes": 4, "wall_seconds": max(f["wall_seconds"] for f in found),
        "peak_bytes": [f["peak_bytes"] for f in found], "finite": all(f["finite"] for f in found),
    }  # fmt: skip


def _goals(training: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Peak memory over its share of one process's, and losses against one process's."""
    found = []
    for row in training:
        alone = next(r for r in training if r["tokens"] == row["tokens"] and r["processes"] == 1)
        share = alone["peak_bytes"][0] / row["processes"]
        off = max(abs(a / b - 1) for a, b in zip(row["losses"], alone["losses"], strict=True))
        found.append({
            "tokens": row["tokens"], "processes": row["processes"], "peak_over_share": max(row["peak_bytes"]) / share,
            "losses_relative": off,
        })  # fmt: skip
    return found
