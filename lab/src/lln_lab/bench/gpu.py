"""Every operation on a GPU against softmax attention (flash), fla's linear attentions and what the card's memory allows.

Times are by CUDA events, and the median counts. A method's share of the bandwidth is the bytes it cannot do without
(forward q, k, v and the output; backward these, dout, dq, dk and dv) over its time, against a copy measured in the same run.
"""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.attention import block_diagonal_attention, lln_attention, lln_diag_attention
from lln.near_far import near_far_attention

Method = Callable[[Tensor, Tensor, Tensor], Tensor]
ALPHA = BETA = 2.0
NO_GPU = (
    "there is no GPU here: torch.cuda.is_available() says no, so there is nothing to time. `lln gpu sheet` says what can be "
    "known without one"
)


class NoGPU(RuntimeError):
    """Raised before anything else where there is none."""


@dataclass(frozen=True)
class Plan:
    lengths: tuple[int, ...] = (1024, 4096, 16_384, 65_536)
    batch: int = 4
    heads: int = 12
    head_dim: int = 64
    dtype: str = "bfloat16"
    repeats: int = 30
    longest_softmax: int = 65_536
    seed: int = 0


def methods() -> dict[str, Method]:
    """Every attention of the library, and whoever is installed besides."""
    found: dict[str, Method] = {
        "LLN": lambda q, k, v: lln_attention(q, k, v, ALPHA, BETA),
        "LLN, matched": lambda q, k, v: lln_attention(q, k, v),
        "LLN, causal": lambda q, k, v: lln_attention(q, k, v, ALPHA, BETA, is_causal=True),
        "LLN+Diag": lambda q, k, v: lln_diag_attention(q, k, v, ALPHA, BETA),
        "LLN+Diag, causal": lambda q, k, v: lln_diag_attention(q, k, v, ALPHA, BETA, is_causal=True),
        "near-far": lambda q, k, v: near_far_attention(q, k, v, ALPHA, BETA),
        "near-far, causal": lambda q, k, v: near_far_attention(q, k, v, ALPHA, BETA, is_causal=True),
        "blocks": lambda q, k, v: block_diagonal_attention(q, k, v),
        "LLN, plain torch": lambda q, k, v: lln_attention(q, k, v, ALPHA, BETA, backend="chunked"),
        "softmax (SDPA)": F.scaled_dot_product_attention,
        "softmax (SDPA), causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    return found | (_of_fla() if find_spec("fla") is not None else {})


def _of_fla() -> dict[str, Method]:
    """Theirs have the heads behind the length, and no features of LLN: q and k go in as they are."""
    from fla.ops.linear_attn import chunk_linear_attn
    from fla.ops.simple_gla import chunk_simple_gla

    def turned(run: Callable[..., Any]) -> Method:
        return lambda q, k, v: run(*(t.transpose(1, 2) for t in (q, k, v)))[0].transpose(1, 2)

    return {
        "fla chunk_linear_attn, causal": turned(chunk_linear_attn),
        "fla chunk_simple_gla, causal": turned(chunk_simple_gla),
    }


def run(plan: Plan, told: Callable[[str], None]) -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise NoGPU(NO_GPU)
    torch.manual_seed(plan.seed)
    told("copying")
    copied = copy_bandwidth(plan.repeats)
    rows = [
        row
        for length in plan.lengths
        for backward in (False, True)
        for row in measure(plan, length, backward, copied, told)
    ]
    return {
        "plan": asdict(plan),
        "card": torch.cuda.get_device_name(),
        "fla": find_spec("fla") is not None,
        "copy_gigabytes_per_second": copied,
        "rows": rows,
    }


def measure(
    plan: Plan, length: int, backward: bool, copied: float, told: Callable[[str], None]
) -> list[dict[str, Any]]:
    shape = (plan.batch, plan.heads, length, plan.head_dim)
    dtype = getattr(torch, plan.dtype)
    q, k, v = (torch.randn(shape, device="cuda", dtype=dtype, requires_grad=backward) for _ in range(3))
    grad = torch.randn_like(q)
    least = q.numel() * q.element_size() * (4 + 8 if backward else 4)
    rows = []
    for name, method in methods().items():
        if name.startswith("softmax") and length > plan.longest_softmax:
            continue
        told(f"N = {length:,}, {'forward + backward' if backward else 'forward'}, {name}")

        def step(method: Method = method) -> None:
            out = method(q, k, v)
            if backward:
                torch.autograd.grad(out, (q, k, v), grad)

        row: dict[str, Any] = {"method": name, "length": length, "backward": backward}
        try:
            taken = milliseconds(step, plan.repeats)
        except (RuntimeError, torch.OutOfMemoryError) as reason:  # one that cannot is told, and the others go on
            rows.append(row | {"failed": f"{type(reason).__name__}: {reason}"[:300]})
            continue
        rate = 1e-6 * least / taken
        rows.append(row | {"milliseconds": taken, "gigabytes_per_second": rate, "share_of_copy": rate / copied})
    return rows


def milliseconds(step: Callable[[], Any], repeats: int) -> float:
    """The median over `repeats`, by events on the device, after three to warm up."""
    for _ in range(3):
        step()
    taken = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end))
    return statistics.median(taken)


def copy_bandwidth(repeats: int) -> float:
    """GB/s, read and written, of copying 1 GiB."""
    source = torch.zeros(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2e-6 * source.nbytes / milliseconds(lambda: target.copy_(source), repeats)
