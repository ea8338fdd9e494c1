"""The speed of near-far attention on the CPU: ratios to the bare products q @ (k.mT @ v), growth with the length, the length
from which it is faster than softmax, and decoding.

B = 1, 12 heads of 64, float32, one thread. Calls take turns, and what is compared is the fastest of each in time of the
processor: the machine may be busy with something else.
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
from lln.measuring.timing import interleaved
from lln.near_far import near_far_attention
from lln_lab.bench.kernels import BARE, bare_products

SOFTMAX, DIAG = "softmax (SDPA)", "LLN+Diag"
OWN_BLOCK: dict[str, Any] = {"block_size": 64}
WIDE: dict[str, Any] = {"block_size": 64, "neighbours": 1, "first_tokens": 4}
NEAR_FAR: dict[str, dict[str, Any]] = {
    "blocks of 64": OWN_BLOCK,
    "blocks of 64, causal": OWN_BLOCK | {"is_causal": True},
    "a neighbour and 4 first tokens": WIDE,
    "a neighbour and 4 first tokens, causal": WIDE | {"is_causal": True},
    "blocks of 16": {"block_size": 16},
}
SCALES = {"alpha": 1.0, "beta": 1.0}


@dataclass(frozen=True)
class Plan:
    lengths: tuple[int, ...] = (128, 256, 384, 512, 1024, 4096, 16_384)
    longest_softmax: int = 1024
    heads: int = 12
    head_dim: int = 64
    repeats: int = 9
    context: int = 1000  # tokens read before decoding
    tokens: int = 320  # decoded: several blocks, so that closing one is part of the mean
    seed: int = 0


def run(plan: Plan, on_progress: Callable[[str], None]) -> dict[str, Any]:
    torch.manual_seed(plan.seed)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = []
        for backward in (False, True):
            for length in plan.lengths:
                on_progress(f"{'forward + backward' if backward else 'forward'}, N = {length:,}")
                rows.append(measure(plan, length, backward))
        on_progress("decoding")
        decoding = measure_decoding(plan)
    finally:
        torch.set_num_threads(before)
    return {
        "plan": asdict(plan),
        "rows": rows,
        "crossover": crossovers(rows),
        "growth": growth(rows),
        "decoding": decoding,
    }


def methods(plan: Plan, length: int) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    found: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        BARE: bare_products,
        "LLN": partial(lln_attention, **SCALES),  # type: ignore[dict-item]
        DIAG: partial(lln_diag_attention, **SCALES, block_size=64),  # type: ignore[dict-item]
        **{name: partial(near_far_attention, **SCALES, **options) for name, options in NEAR_FAR.items()},  # type: ignore[dict-item]
    }
    if length <= plan.longest_softmax:
        found[SOFTMAX] = F.scaled_dot_product_attention
        found[f"{SOFTMAX}, causal"] = partial(F.scaled_dot_product_attention, is_causal=True)
    return found


def measure(plan: Plan, length: int, backward: bool) -> dict[str, Any]:
    """Every method at one length, taking turns."""
    shape = (1, plan.heads, length, plan.head_dim)
    inputs = [torch.randn(shape).requires_grad_(backward) for _ in range(3)]
    grad = torch.randn(shape)

    def call(method: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        out = method(*inputs)
        if backward:
            out.backward(grad)
            for x in inputs:
                x.grad = None

    functions = {name: partial(call, method) for name, method in methods(plan, length).items()}
    repeats = max(3, min(6 * plan.repeats, plan.repeats * 4096 // length))
    timings = interleaved(functions, repeats=repeats, warmup=2)
    fastest = {name: timing.least_cpu for name, timing in timings.items()}
    return {
        "length": length,
        "backward": backward,
        "milliseconds": {name: 1e3 * seconds for name, seconds in fastest.items()},
        "ratio_to_bare_products": {name: seconds / fastest[BARE] for name, seconds in fastest.items()},
    }


def crossovers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The shortest length from which on, at all lengths measured, it takes less time than softmax of the same direction."""
    found = []
    for backward in (False, True):
        for name, options in NEAR_FAR.items():
            rival = f"{SOFTMAX}, causal" if options.get("is_causal") else SOFTMAX
            at: int | None = None
            for row in rows:
                times = row["milliseconds"]
                if row["backward"] != backward or rival not in times:
                    continue
                faster = times[name] < times[rival]
                at = (row["length"] if at is None else at) if faster else None
            found.append({"near": name, "backward": backward, "faster_from_length": at})
    return found


def growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Time a token at the longest length over that at a quarter of it."""
    found = []
    for backward in (False, True):
        by_length = {row["length"]: row["milliseconds"] for row in rows if row["backward"] == backward}
        longest = max(by_length)
        if longest // 4 not in by_length:
            continue
        for name in NEAR_FAR:
            ratio = by_length[longest][name] / by_length[longest // 4][name] / 4
            found.append({"near": name, "backward": backward, "length": longest, "time_per_token_to_a_quarter": ratio})
    return found


def measure_decoding(plan: Plan) -> dict[str, Any]:
    """A token at a time from a state, in turn with LLN+Diag's: mean over tokens, the closing of blocks included."""
    attentions: dict[str, Callable[..., Any]] = {
        DIAG: partial(lln_diag_attention, block_size=64),
        "blocks of 64": partial(near_far_attention, **OWN_BLOCK),
        "a neighbour and 4 first tokens": partial(near_far_attention, **WIDE),
    }
    shape = (1, plan.heads, plan.context, plan.head_dim)
    past = [torch.randn(shape) for _ in range(3)]
    options = {**SCALES, "is_causal": True, "return_state": True}
    with torch.no_grad():
        states = {name: attention(*past, **options)[1] for name, attention in attentions.items()}
        seconds: dict[str, list[float]] = {name: [] for name in attentions}
        for _ in range(plan.tokens):
            token = [x[:, :, :1] for x in past]
            for name, attention in attentions.items():
                begun = time.process_time()
                _, states[name] = attention(*token, **options, state=states[name])
                seconds[name].append(time.process_time() - begun)
    kept = {name: sorted(taken)[: plan.tokens * 9 // 10] for name, taken in seconds.items()}  # the rest was interrupted
    mean = {name: sum(taken) / len(taken) for name, taken in kept.items()}
    return {
        "context": plan.context,
        "tokens": plan.tokens,
        "microseconds_per_token": {name: 1e6 * m for name, m in mean.items()},
        "ratio_to_lln_diag": {name: m / mean[DIAG] for name, m in mean.items()},
    }
