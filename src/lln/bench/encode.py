"""Encoding long documents: a BERT encoder with LLN+Diag, with LLN and with softmax, time against the length.

Random weights of all-MiniLM-L6-v2's shape (6 layers of width 384, 12 heads of 32), with as many positions as are asked for:
only cost is measured. The crossover is the first length at which an attention takes less time than softmax.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import BertConfig, BertModel

import lln.hf
from lln.bench.timing import interleaved

ATTENTIONS = ("sdpa", "lln_diag", "lln")


@dataclass(frozen=True)
class Plan:
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    batch: int = 8
    repeats: int = 5
    slow: float = 10.0  # seconds; what takes longer runs once
    seed: int = 0


def run(plan: Plan, on_progress: Callable[[str], None]) -> dict[str, Any]:
    lln.hf.register()
    rows: list[dict[str, Any]] = []
    for length in plan.lengths:
        on_progress(f"{plan.batch} x {length:,} tokens")
        calls = {attention: encoder(attention, length, plan) for attention in ATTENTIONS}
        timings = interleaved(calls, repeats=plan.repeats, slow=plan.slow)
        rows.append(
            {
                "length": length,
                "seconds": {name: timing.median for name, timing in timings.items()},
                "quartiles": {name: timing.quartiles for name, timing in timings.items()},
                "runs": {name: timing.runs for name, timing in timings.items()},
                "ratio": {name: timing.median / timings["sdpa"].median for name, timing in timings.items()},
            }
        )
    crossover = {name: next((row["length"] for row in rows if row["ratio"][name] < 1), None) for name in ATTENTIONS[1:]}
    return {"batch": plan.batch, "threads": torch.get_num_threads(), "rows": rows, "crossover": crossover}


def encoder(attention: str, length: int, plan: Plan) -> Callable[[], Any]:
    torch.manual_seed(plan.seed)
    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
        max_position_embeddings=length,
    )  # fmt: skip
    config._attn_implementation = attention
    model = BertModel(config).eval()
    tokens = torch.randint(0, config.vocab_size, (plan.batch, length))

    @torch.no_grad()
    def call() -> Any:
        return model(tokens).last_hidden_state

    return call
