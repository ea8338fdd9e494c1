"""Encoding long documents: a BERT encoder with LLN+Diag, with LLN and with softmax, time against the length.

Random weights of all-MiniLM-L6-v2's shape (6 layers of width 384, 12 heads of 32), with as many positions as are asked for:
only cost is measured. The crossover is the length from which on an attention takes less time than softmax.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel

import lln.hf
from lln.measuring.timing import interleaved
from lln.results import write_result

ATTENTIONS = ("sdpa", "lln_diag", "lln")


@dataclass(frozen=True)
class Plan:
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    batch: int = 8
    repeats: int = 5
    slow: float = 10.0  # seconds; what takes longer runs once
    threads: int = 0  # 0 leaves it to torch
    seed: int = 0


def run(plan: Plan, path: Path, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Lengths that `path` already has, measured in the same way, are kept; the file is written after each length."""
    lln.hf.register()
    if plan.threads:
        torch.set_num_threads(plan.threads)
    how = {name: value for name, value in asdict(plan).items() if name != "lengths"}
    how["threads"] = torch.get_num_threads()
    rows = _known(path, how)
    for length in plan.lengths:
        if length not in rows:
            on_progress(f"{plan.batch} x {length:,} tokens")
            rows[length] = measure(plan, length)
            write_result(path, _summary(how, rows), plan.seed)
    return _summary(how, {length: rows[length] for length in plan.lengths})


def measure(plan: Plan, length: int) -> dict[str, Any]:
    calls = {attention: encoder(attention, length, plan) for attention in ATTENTIONS}
    timings = interleaved(calls, repeats=plan.repeats, slow=plan.slow)
    return {
        "length": length,
        "seconds": {name: timing.median for name, timing in timings.items()},
        "quartiles": {name: timing.quartiles for name, timing in timings.items()},
        "runs": {name: timing.runs for name, timing in timings.items()},
        "ratio": {name: timing.median / timings["sdpa"].median for name, timing in timings.items()},
    }


def encoder(attention: str, length: int, plan: Plan) -> Callable[[], Any]:
    torch.manual_seed(plan.seed)
    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
        max_position_embeddings=length, vocab_size=1000,
    )  # fmt: skip
    config._attn_implementation = attention
    model = BertModel(config).eval()
    tokens = torch.randint(0, config.vocab_size, (plan.batch, length))

    @torch.no_grad()
    def call() -> Any:
        return model(tokens).last_hidden_state

    return call


def crossover(rows: list[dict[str, Any]], attention: str) -> int | None:
    """The first length from which on every one measured takes less time than softmax; None where the longest does not."""
    found = None
    for row in sorted(rows, key=lambda row: row["length"], reverse=True):
        if row["ratio"][attention] >= 1:
            break
        found = int(row["length"])
    return found


def _summary(how: dict[str, Any], rows: dict[int, dict[str, Any]]) -> dict[str, Any]:
    ordered = [rows[length] for length in sorted(rows)]
    return {**how, "rows": ordered, "crossover": {name: crossover(ordered, name) for name in ATTENTIONS[1:]}}


def _known(path: Path, how: dict[str, Any]) -> dict[int, dict[str, Any]]:
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    same = all(found.get(name) == value for name, value in how.items())
    return {row["length"]: row for row in found["rows"]} if same else {}
