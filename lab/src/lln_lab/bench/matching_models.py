"""How concentrated LLN attention is on the queries and keys of a Hugging Face model, per layer and head.

The model runs with its own softmax attention; each layer's q and k are taken as attention gets them, and matched as if
attention were bidirectional. Entropies are over all rows and all keys that count, in bits.

Of an encoder also: the cosine of its mean-pooled output with LLN in softmax's place, without training, to its own.
"""

import itertools
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.matching import match_moments

METHODS = ("table", "sample")
_ROWS = 256  # of the matrix at a time


@torch.no_grad()
def run(
    model: str, texts: list[str], max_length: int = 512, gguf_file: str | None = None, center_keys: bool = False
) -> dict[str, Any]:
    """`model`: a folder or a name; `texts`: each is a sample by itself."""
    from transformers import AutoModel, AutoTokenizer

    from lln.hf.attention.call import Call
    from lln.hf.conversion.watching import watching

    options = {} if gguf_file is None else {"gguf_file": gguf_file}
    tokenizer = AutoTokenizer.from_pretrained(model, **options)
    network = AutoModel.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa", **options).eval()
    cut = {"truncation": True, "max_length": max_length, "return_tensors": "pt"}
    rows: list[dict[str, Any]] = []
    for text_number, text in enumerate(texts):
        inputs = tokenizer(text, **cut)
        layer = 0

        def look(call: Call, _: Tensor, text_number: int = text_number) -> None:
            nonlocal layer
            for head, found in enumerate(heads(call.q, call.k, call.scale, center_keys)):
                rows.append({"text": text_number, "layer": layer, "head": head, "tokens": call.k.shape[2], **found})
            layer += 1

        with watching(network, look):
            network(**inputs)
    found = {"model": Path(model).name, "center_keys": center_keys, "heads": per_head(rows), "summary": summary(rows)}
    if not is_causal(network):
        found["swapped"] = swapped(network, [tokenizer(text, **cut) for text in texts])
    return found


def is_causal(network: Any) -> bool:
    return any(getattr(module, "is_causal", False) for module in network.modules())


def swapped(network: Any, texts: list[Any]) -> dict[str, float]:
    """Mean cosine over the texts, by how the attention that took softmax's place was matched."""
    from lln_lab.bench.matching_attention import Matched

    own, result = _pooled(network, texts), {}
    for blocks, center_keys, method in itertools.product((False, True), (False, True), METHODS):
        way = Matched(method, center_keys, blocks)
        network.set_attn_implementation(way.register())
        result[way.name] = float(torch.cosine_similarity(_pooled(network, texts), own, dim=-1).mean())
    return result


def _pooled(network: Any, texts: list[Any]) -> Tensor:
    return torch.stack([network(**inputs).last_hidden_state[0].mean(dim=0) for inputs in texts])


def heads(q: Tensor, k: Tensor, scale: float, center_keys: bool) -> list[dict[str, float]]:
    """Entropies of each key head of q (1, Hq, N, D) and k (1, Hk, N, D)."""
    groups = q.shape[1] // k.shape[1]
    matched = {m: match_moments(q, k, method=m, scale=scale, center_keys=center_keys) for m in METHODS}
    result = []
    for head in range(k.shape[1]):
        queries = q[0, head * groups : (head + 1) * groups].flatten(0, 1).double()
        keys = k[0, head].double()
        row = {"softmax": _entropy(lambda x, keys=keys: scale * x @ keys.T, queries)}
        for method, (alpha, beta) in matched.items():
            centred = keys - keys.mean(dim=0) if center_keys else keys
            row[method] = _lln_entropy(queries, centred, float(alpha[0, head * groups]), float(beta[0, head]))
        result.append(row)
    return result


def _lln_entropy(q: Tensor, k: Tensor, alpha: float, beta: float) -> float:
    key = beta * k
    peak = key.amax(dim=0)
    features = (key - peak).exp().T

    def log_kernel(some: Tensor) -> Tensor:
        query = alpha * some + peak
        return ((query - query.amax(dim=1, keepdim=True)).exp() @ features).clamp_min(1e-300).log()

    return _entropy(log_kernel, q)


def _entropy(log_weights: Any, q: Tensor) -> float:
    total = 0.0
    for some in q.split(_ROWS):
        log_p = torch.log_softmax(log_weights(some), dim=-1)
        total -= float((log_p.exp() * log_p).nan_to_num(0.0).sum())
    return total / len(q) / math.log(2)


def per_head(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the texts."""
    result = []
    for layer, head in sorted({(row["layer"], row["head"]) for row in rows}):
        some = [row for row in rows if (row["layer"], row["head"]) == (layer, head)]
        means = {name: sum(row[name] for row in some) / len(some) for name in ("tokens", "softmax", *METHODS)}
        result.append({"layer": layer, "head": head, **{name: round(x, 4) for name, x in means.items()}})
    return result


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all heads of all texts, each by itself: the share within 5 % of softmax's entropy, and how far they are off."""
    result: dict[str, Any] = {"heads_and_texts": len(rows)}
    for method in METHODS:
        off = torch.tensor([abs(row[method] - row["softmax"]) for row in rows], dtype=torch.float64)
        share = off / torch.tensor([row["softmax"] for row in rows], dtype=torch.float64).clamp_min(1e-9)
        result[method] = {
            "within_5_percent": float((share <= 0.05).double().mean()),
            "within_3_percent_or_0.15_bits": float(((share <= 0.03) | (off <= 0.15)).double().mean()),
            "median_percent": float(100 * share.median()),
            "ninth_of_ten_percent": float(100 * share.quantile(0.9)),
            "mean_bits": float(off.mean()),
        }
    return result
