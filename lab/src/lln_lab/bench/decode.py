"""Decoding a token after ever more context: time, and what the cache takes, with a state and with a cache of keys.

A random Llama of a few layers; positions go on beyond what it was made for, since only cost is measured. LLN's state comes
from really reading the context, in pieces; the cache of keys, whose reading would take quadratic time, is filled at random.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from lln.hf import LLNCache
from lln.measuring.memory import peak_extra_bytes
from lln.measuring.timing import interleaved

ATTENTIONS = ("lln", "lln_diag", "sdpa")


@dataclass(frozen=True)
class Plan:
    contexts: tuple[int, ...] = (1_000, 10_000, 100_000)
    layers: int = 2
    heads: int = 4
    head_dim: int = 64
    piece: int = 4096
    steps: int = 30


def run(plan: Plan, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Steps of all attentions and all contexts in turn, so that their ratios are those of one moment."""
    decoders, kept = {}, {}
    for context in plan.contexts:
        for attention in ATTENTIONS:
            on_progress(f"{attention}: reading {context:,} tokens")
            decoder = Decoder(plan, attention, context)
            decoders[f"{attention} {context}"] = decoder.step
            kept[f"{attention} {context}"] = decoder.cache_bytes()
    on_progress("decoding")
    timings = interleaved(decoders, repeats=plan.steps, warmup=3)
    rows = []
    for attention in ATTENTIONS:
        first = timings[f"{attention} {plan.contexts[0]}"].median
        for context in plan.contexts:
            name = f"{attention} {context}"
            on_progress(f"{attention}: memory of a step after {context:,} tokens")
            rows.append(
                {
                    "attention": attention,
                    "context": context,
                    "seconds_per_token": timings[name].median,
                    "quartiles": timings[name].quartiles,
                    "ratio_to_shortest": timings[name].median / first,
                    "cache_bytes": kept[name],
                    "peak_extra_bytes_of_a_step": peak_extra_bytes(prepare_step, plan, attention, context),
                }
            )
    shape = {"layers": plan.layers, "heads": plan.heads, "head_dim": plan.head_dim, "batch": 1}
    return {"model": shape, "rows": rows}


class Decoder:
    """A model that has read `context` tokens and can read one more at a time."""

    def __init__(self, plan: Plan, attention: str, context: int) -> None:
        torch.manual_seed(0)
        width = plan.heads * plan.head_dim
        config = LlamaConfig(
            vocab_size=256, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=plan.layers,
            num_attention_heads=plan.heads, num_key_value_heads=plan.heads, max_position_embeddings=131_072,
        )  # fmt: skip
        config.lln = {"alpha": 2.0, "beta": 2.0}
        self.model = LlamaForCausalLM._from_config(config, attn_implementation=attention).eval()
        self.cache: Any = DynamicCache() if attention == "sdpa" else LLNCache.of(self.model)
        self.token = torch.ones(1, 1, dtype=torch.long)
        if attention == "sdpa":
            for layer in range(plan.layers):
                self.cache.update(*torch.randn(2, 1, plan.heads, context, plan.head_dim), layer)
        else:
            self._read(torch.randint(0, 256, (1, context)), plan.piece)

    @torch.no_grad()
    def _read(self, ids: torch.Tensor, piece: int) -> None:
        for part in ids.split(piece, dim=1):
            self.model(part, past_key_values=self.cache, use_cache=True, logits_to_keep=1)

    def step(self) -> None:
        self._read(self.token, 1)

    def cache_bytes(self) -> int:
        if isinstance(self.cache, LLNCache):
            return self.cache.nbytes()
        return sum(x.numel() * x.element_size() for layer in self.cache.layers for x in (layer.keys, layer.values))


def prepare_step(plan: Plan, attention: str, context: int) -> Callable[[], None]:
    return Decoder(plan, attention, context).step
