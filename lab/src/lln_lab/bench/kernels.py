"""LLN on the CPU against everything a CPU user could pick instead, as ratios to torch's bare products q @ (k.mT @ v).

Lengths, forward and forward + backward, numbers of threads: one interleaved run each, B = 1, 12 heads of 64, float32.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.attention import lln_attention, lln_diag_attention
from lln.measuring.memory import peak_extra_bytes
from lln.measuring.timing import Timing, interleaved
from lln.ops.lln import Operands, State, attention
from lln_lab.bench import roofline
from lln_lab.bench.operator import ALPHA, BETA, eager

Method = Callable[[Tensor, Tensor, Tensor], Tensor]

BARE = "bare products"
MATCHED, CAUSAL, DIAG, BFLOAT16 = "native, matched", "native, causal", "native + Diag", "native, bfloat16"


def bare_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What every linear attention must do at least, without features or denominators."""
    return q @ (k.mT @ v)


def elu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention with the features elu(x) + 1, in plain torch."""
    f, g = F.elu(q) + 1, F.elu(k) + 1
    return (f @ (g.mT @ v)) / (f @ g.sum(dim=2)[..., None])


METHODS: dict[str, Method] = {
    BARE: bare_products,
    "native": lambda q, k, v: lln_attention(q, k, v, ALPHA, BETA, backend="native"),
    MATCHED: lambda q, k, v: lln_attention(q, k, v, backend="native"),
    CAUSAL: lambda q, k, v: lln_attention(q, k, v, ALPHA, BETA, is_causal=True, backend="native"),
    DIAG: lambda q, k, v: lln_diag_attention(q, k, v, ALPHA, BETA, block_size=64, backend="native"),
    BFLOAT16: lambda q, k, v: lln_attention(q, k, v, ALPHA, BETA, backend="native"),
    "chunked": lambda q, k, v: lln_attention(q, k, v, ALPHA, BETA, backend="chunked"),
    "plain eager": eager,
    "ELU": elu,
    "softmax (SDPA)": F.scaled_dot_product_attention,
}
NATIVE = (BARE, "native", MATCHED, CAUSAL, DIAG, BFLOAT16)
# Quadratic time, or memory of many times the inputs: longer than this they are left out.
LONGEST = {"softmax (SDPA)": 4096, "plain eager": 16_384, "ELU": 16_384, "chunked": 16_384}


@dataclass(frozen=True)
class Plan:
    lengths: tuple[int, ...] = (256, 1024, 4096, 16_384, 65_536)
    threads: tuple[int, ...] = (1, 2)
    repeats: int = 15
    heads: int = 12
    head_dim: int = 64
    memory_length: int = 16_384
    long_length: int = 1_000_000
    seed: int = 0
    native_only: bool = False  # times of the native kernel and of the bare products, and nothing else


def run(plan: Plan, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """All measurements of `lln bench kernels`."""
    torch.manual_seed(plan.seed)
    before = torch.get_num_threads()
    try:
        timings = [
            measure(plan, length, threads, backward, on_progress)
            for threads in plan.threads
            for backward in (False, True)
            for length in plan.lengths
        ]
        torch.set_num_threads(max(plan.threads))
        memory = long = None
        if not plan.native_only:
            on_progress("peak memory")
            memory = measure_memory(plan)
            on_progress(f"{plan.long_length:,} tokens")
            long = measure_long(plan)
        on_progress("decoding")
        decode = measure_decode(plan)
    finally:
        torch.set_num_threads(before)
    return {"plan": asdict(plan), "timings": timings, "memory": memory, "long": long, "decode": decode}


def measure(
    plan: Plan, length: int, threads: int, backward: bool, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Every method at one length, in one interleaved run."""
    on_progress(
        f"{threads} thread{'s' * (threads > 1)}, {'forward + backward' if backward else 'forward'}, N = {length:,}"
    )
    torch.set_num_threads(threads)
    methods = NATIVE if plan.native_only else METHODS
    names = [name for name in methods if length <= LONGEST.get(name, length)]
    functions = {name: prepare(name, plan.heads, length, plan.head_dim, backward) for name in names}
    for function in functions.values():
        function()  # what is loaded or compiled on first use is not to be taken for a slow method
    repeats = max(3, min(10 * plan.repeats, plan.repeats * 4096 // length))
    timings = interleaved(functions, repeats=repeats, warmup=1, slow=5.0)
    base = timings[BARE]
    rows = {name: _row(plan, timing, base, length, backward) for name, timing in timings.items()}
    limits = roofline.limits(repeats=7) if length == max(plan.lengths) else None
    return {"threads": threads, "backward": backward, "length": length, "methods": rows, "limits": limits}


def _row(plan: Plan, timing: Timing, base: Timing, length: int, backward: bool) -> dict[str, Any]:
    return {
        "milliseconds": 1e3 * timing.median,
        "quartiles": [1e3 * x for x in timing.quartiles],
        "fastest": 1e3 * timing.fastest,
        "ratio": timing.median / base.median,
        "ratio_of_fastest": timing.fastest / base.fastest,
        "least_cpu_milliseconds": 1e3 * timing.least_cpu,
        "ratio_of_least_cpu": timing.least_cpu / base.least_cpu,
        "runs": timing.runs,
        **roofline.achieved(timing.fastest, plan.heads, length, plan.head_dim, backward),
    }


def prepare(name: str, heads: int, length: int, dim: int, backward: bool) -> Callable[[], Any]:
    """Inputs with the rows of each head side by side, and the call to be measured."""
    dtype = torch.bfloat16 if name == BFLOAT16 else torch.float32
    inputs = [torch.randn(1, heads, length, dim).to(dtype).requires_grad_(backward) for _ in range(3)]
    method = METHODS[name]
    if not backward:
        return lambda: method(*inputs)
    grad = torch.randn(1, heads, length, dim).to(dtype)

    def step() -> None:
        method(*inputs).backward(grad)
        for x in inputs:
            x.grad = None  # so that the next call's memory is its own

    return step


def measure_memory(plan: Plan) -> dict[str, Any]:
    """Peak extra memory of forward + backward, beside what the output and three gradients take."""
    results = 4 * 4 * plan.heads * plan.memory_length * plan.head_dim
    names = [BARE, "native", CAUSAL, "chunked", "plain eager"]
    peaks = {
        name: peak_extra_bytes(prepare, name, plan.heads, plan.memory_length, plan.head_dim, True) for name in names
    }
    rows = {name: {"bytes": peak, "beyond_results": peak / results - 1} for name, peak in peaks.items()}
    return {"length": plan.memory_length, "results_bytes": results, "methods": rows}


def measure_long(plan: Plan) -> dict[str, Any]:
    """One head over a very long sequence, forward and backward: time, and peak memory beyond the inputs."""
    rows = {}
    for name in ("native", CAUSAL):
        step = prepare(name, 1, plan.long_length, plan.head_dim, True)
        step()
        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        extra = peak_extra_bytes(prepare, name, 1, plan.long_length, plan.head_dim, True)
        inputs = 4 * 4 * plan.long_length * plan.head_dim  # q, k, v and the gradient of the output
        rows[name] = {"seconds": seconds, "extra_bytes": extra, "with_inputs_bytes": extra + inputs}
    return {"length": plan.long_length, "heads": 1, "methods": rows}


def measure_decode(plan: Plan, steps: int = 300) -> dict[str, Any]:
    """One token after 1,000 and after `long_length` tokens, of LLN; and of LLN and LLN+Diag after 1,000. All interleaved."""
    heads, dim, forward = plan.heads, plan.head_dim, attention.backends["native"].forward
    scale = torch.full((1, heads, dim), ALPHA)
    token = torch.randn(1, heads, 1, dim)
    functions: dict[str, Callable[[], Any]] = {}
    for position in (1000, plan.long_length):
        state: State | None = None
        for start in range(0, position, 50_000):
            piece = torch.randn(1, heads, min(50_000, position - start), dim)
            found = forward(Operands(piece, piece, piece, scale, scale, is_causal=True).starting_from(state))
            state = found.state.with_sums_in(torch.float64)
        step = Operands(token, token, token, scale, scale, is_causal=True).starting_from(state)
        functions[str(position)] = partial(forward, step)
    piece = torch.randn(1, heads, 1000, dim)
    for name, function in (("lln", lln_attention), ("diag", lln_diag_attention)):
        causal = partial(function, alpha=ALPHA, beta=BETA, is_causal=True, return_state=True, backend="native")
        functions[name] = partial(causal, token, token, token, state=causal(piece, piece, piece)[1])
    timings = interleaved(functions, repeats=steps, warmup=20)
    early, late = (timings[str(position)] for position in (1000, plan.long_length))
    return {
        "positions": [1000, plan.long_length],
        "microseconds": [1e6 * early.median, 1e6 * late.median],
        "ratio": late.median / early.median,
        "lln_microseconds": 1e6 * timings["lln"].median,
        "diag_microseconds": 1e6 * timings["diag"].median,
        "diag_to_lln": timings["diag"].median / timings["lln"].median,
        "diag_to_lln_of_least_cpu": timings["diag"].least_cpu / timings["lln"].least_cpu,
    }
