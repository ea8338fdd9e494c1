"""What the demo's page opens with: two sentences, a few large figures, and what they cannot say. All from its result."""

import math
from typing import Any

from lln_lab.experiments.grid import by_label, mean_and_spread
from lln_lab.experiments.pairs import gains

NAMES = {"lln": "LLN", "lln_diag": "LLN+Diag"}


def headline(found: dict[str, Any]) -> dict[str, Any]:
    """{"sentences": [...], "figures": [{"value", "label", "note"}]}"""
    length, faster = found["timing"]["lengths"][-1], speed_ups(found)
    losses = loss_gaps(found)
    run = found["runs"][0]
    seeds = len({r["seed"] for r in found["runs"]})
    trained = f"{run['steps']} steps of {run['budget']['batch']} windows of {run['model']['length']} tokens"
    of_seeds = "" if seeds == 1 else f", {seeds} seeds each"
    softmax = mean_and_spread(by_label(found["runs"], "loss")["softmax"])[0]
    sentences = [
        f"Three small encoders that differ only in their attention were trained to fill in masked tokens of "
        f"{found['data']['name']}: {trained}{of_seeds}, on this machine.",
        f"At {length:,} tokens LLN attention is {times(faster['lln'])} times and LLN+Diag {times(faster['lln_diag'])} times "
        f"faster than softmax. After training, their validation losses differ from softmax's {softmax:.2f} by "
        f"{signed(losses['lln'])} and {signed(losses['lln_diag'])}.",
    ]
    figures = [
        {
            "value": f"{times(faster[name])}×",
            "label": f"{NAMES[name]} is faster than softmax",
            "note": f"forward + backward at {length:,} tokens",
            "attention": name,
        }
        for name in NAMES
    ]
    return {"sentences": sentences, "figures": [*figures, *_memory(found), _loss(losses["lln_diag"])]}


def limits(found: dict[str, Any]) -> list[str]:
    """What the demo cannot say."""
    seeds = len({r["seed"] for r in found["runs"]})
    run, count = found["runs"][0], found["timing"]["threads"]
    threads = "one thread" if count == 1 else f"{count} threads"
    told = []
    if seeds == 1:
        told.append(
            "One seed has no spread: another seed might change the order of the three losses. "
            "`lln demo --seeds 3` trains three and compares them seed by seed."
        )
    told += [
        f"{run['steps']} steps are only a beginning: the losses are still falling, and so small a model says nothing about "
        "large ones. `lln reproduce fig8` trains longer, on your own text.",
        f"Times are CPU time of the attention alone, two heads of 64, on {threads}; softmax is "
        "torch's fused scaled_dot_product_attention. In a whole model the gain is smaller, because other layers take time too.",
    ]
    return told


def speed_ups(found: dict[str, Any]) -> dict[str, float]:
    """Times faster than softmax at the longest length."""
    taken = {series["label"]: series["seconds"][-1] for series in found["timing"]["series"]}
    return {name: taken["softmax"] / taken[name] for name in NAMES}


def loss_gaps(found: dict[str, Any]) -> dict[str, float]:
    """Validation loss minus softmax's with the same seed, mean over seeds."""

    def minus_loss(result: dict[str, Any]) -> float:
        return -float(result["evaluation"]["loss"])

    return {name: mean_and_spread([-x for x in gains(found["runs"], name, "softmax", minus_loss)])[0] for name in NAMES}


def times(ratio: float) -> str:
    """Two or three digits: 1.4, 12, 174."""
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def signed(gap: float) -> str:
    """With a true minus sign; what rounds to zero has no sign."""
    return "0.000" if round(gap, 3) == 0 else f"{gap:+.3f}".replace("-", "−")


def size(count: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}" if count < 10 * unit else f"{count / unit:.0f} {name}"
    return f"{count:.0f} B"


def _memory(found: dict[str, Any]) -> list[dict[str, str]]:
    memory = found.get("memory")
    if not memory:
        return []
    softmax, diag = (memory["bytes"][name] for name in ("softmax", "lln_diag"))
    return [
        {
            "value": size(diag),
            "label": f"memory of LLN+Diag at {memory['length']:,} tokens",
            "note": f"fused softmax: {size(softmax)}; softmax that holds its matrix: {size(memory['matrix_bytes'])} and more",
            "attention": "lln_diag",
        }
    ]


def _loss(gap: float) -> dict[str, str]:
    if not math.isfinite(gap):
        return {"value": "–", "label": "a loss diverged", "note": "see the curves below", "attention": "lln_diag"}
    share = 100 * (math.exp(abs(gap)) - 1)
    higher = f"a perplexity {share:.1f} % {'higher' if gap > 0 else 'lower'}"
    equal = round(gap, 3) == 0  # both are still near what token frequencies give
    return {
        "value": "±0.000" if equal else signed(gap),
        "label": "loss of LLN+Diag against softmax",
        "note": f"nats per masked token: {'no difference yet; train longer' if equal else higher}",
        "attention": "lln_diag",
    }
