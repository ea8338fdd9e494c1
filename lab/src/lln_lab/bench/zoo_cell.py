"""One cell of the zoo's benchmark: an encoder with one member at one length, measured in a process of its own.

Measured are a training step (forward, backward, AdamW), the peak memory of the process above what it had before the
model, and the attention layer alone, forward and forward + backward.
"""

import json
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # torch imports it at the first layer: here it is imported once for all cells

from lln.zoo.encoder import Encoder, EncoderLayer, count_parameters

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Cell:
    """What is measured."""

    member: str
    shape: str
    embed_dim: int
    num_heads: int
    feed_forward: int
    layers: int
    length: int
    round: int
    steps: int = 3
    threads: int = 1
    clock: str = "wall"  # or "cpu": the process's own seconds, which other load hardly touches
    memory_limit: float = 12.0  # gigabytes
    seed: int = 0
    causal: bool = False
    attention_only: bool = False  # without the training step

    @property
    def key(self) -> str:
        """The same for two runs of the same measurement."""
        return json.dumps(asdict(self), sort_keys=True)


def measure(cell: Cell) -> dict[str, Any]:
    """Seconds and bytes of the cell, in this process."""
    torch.set_num_threads(cell.threads)
    torch.manual_seed(cell.seed)
    before = peak_bytes()
    model = Encoder(
        cell.member,
        embed_dim=cell.embed_dim,
        num_heads=cell.num_heads,
        feed_forward=cell.feed_forward,
        layers=cell.layers,
        max_length=cell.length,
    )
    x, target = torch.randn(2, 1, cell.length, cell.embed_dim).unbind(0)
    is_causal = cell.causal or model.only_causal
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        (model(x, is_causal=is_causal) - target).square().mean().backward()
        optimiser.step()

    seconds = None if cell.attention_only else timed(step, cell)
    peak = peak_bytes() - before
    last = model.layers[-1]
    assert isinstance(last, EncoderLayer)
    attention = last.attention

    def forward() -> None:
        with torch.no_grad():
            attention(x, is_causal=is_causal)

    def train() -> None:
        attention(x, is_causal=is_causal).sum().backward()

    forward_seconds, train_seconds = timed(forward, cell), timed(train, cell)
    return {
        "status": "ok",
        "step_seconds": seconds,
        "peak_bytes": peak_bytes() - before if cell.attention_only else peak,
        "attention_forward_seconds": forward_seconds,
        "attention_train_seconds": train_seconds,
        "parameters": count_parameters(model),
    }


def timed(function: Callable[[], None], cell: Cell) -> float:
    """The median time of a call after one to warm up."""
    now = CLOCKS[cell.clock]
    function()
    taken = []
    for _ in range(cell.steps):
        start = now()
        function()
        taken.append(now() - start)
    return statistics.median(taken)


def peak_bytes() -> int:
    """The most memory this process has had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def run_limited(fields: dict[str, Any], sender: Connection) -> None:
    """Measure in this process, within the cell's memory, and send what was found or what went wrong."""
    cell = Cell(**fields)
    limit = int(cell.memory_limit * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        sender.send(measure(cell))
    except Exception as error:
        out_of_memory = isinstance(error, MemoryError) or "allocate" in str(error)
        sender.send({"status": "OOM"} if out_of_memory else {"status": "error", "message": traceback.format_exc()})
