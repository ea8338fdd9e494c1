"""Results to write pages from: small, complete, and with the values that break careless code."""

import math
from pathlib import Path
from typing import Any

import torch

from lln.results import write_result

LAYERS, HEADS, LENGTH = 3, 2, 12
HOSTILE = "</script><script>document.title='owned'</script><b>&amp;\u2028"


def history(start: float, steps: int = 40) -> list[dict[str, Any]]:
    rows = []
    for step in range(1, steps + 1):
        row: dict[str, Any] = {
            "step": step,
            "loss": start / step**0.25,
            "grad_norm": 1 + 1 / step,
            "learning_rate": 1e-3,
        }
        for layer in range(LAYERS):
            row[f"attention/{layer}/temperature"] = 3.0 + layer - step / 50
            row[f"attention/{layer}/entropy"] = 6.0 - layer / 2 - step / 40
            row[f"attention/{layer}/gap"] = 0.9 - layer / 10 - step / 200
        if step % 10 == 0:
            row["eval_loss"] = start / step**0.25 + 0.1
        rows.append(row)
    return rows


def run(label: str, start: float, seed: int = 0, task: str = "mlm") -> dict[str, Any]:
    return {
        "task": task, "attention": label.lower(), "label": label, "options": {}, "seed": seed, "parameters": 123_456,
        "steps": 40, "seconds_per_step": 0.125, "peak_bytes": 64_000_000, "history": history(start),
        "evaluation": {"loss": start / 40**0.25, "accuracy": 0.25},
    }  # fmt: skip


def maps() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    words = " ".join(f"word{i}" for i in range(LENGTH))
    return [
        {
            "attention": label.lower(), "label": label, "layer": layer, "head": head, "text": words,
            "matrix": (spread * torch.randn(LENGTH, LENGTH, generator=generator)).softmax(-1).tolist(),
        }
        for label, spread in (("softmax", 2.0), ("LLN", 1.5))
        for layer in range(LAYERS)
        for head in range(HEADS)
    ]  # fmt: skip


def experiment() -> dict[str, Any]:
    """A result of a training experiment with everything that one may have."""
    return {
        "experiment": "fig8",
        "title": "Masked-language-model pre-training",
        "preset": "cpu",
        "settings": {"layers": LAYERS, "learning_rate": 1e-3},
        "data": {
            "name": "wikitext", "source": "a folder", "rows": {"train": 36_718, "validation": 3_760},
            "files": {"train.txt": "ab" * 32},
        },
        "runs": [
            run("softmax", 6.0), run("softmax", 6.1, seed=1), run("LLN", 5.9), run("LLN", 5.8, seed=1), run("LLN+Diag", 5.7),
        ],
        "tables": [
            {
                "title": "Validation loss", "note": "Mean of two seeds.", "columns": ["attention", "loss", "accuracy"],
                "rows": [["softmax", 2.4034, 0.25], ["LLN", 2.3634, None], ["LLN+Diag", math.nan, 0.5]],
                "paper": {"title": "Table 0", "columns": ["attention", "loss"], "rows": [["softmax", 1.9], ["LLN", 1.95]]},
            }
        ],
        "verdicts": [
            {"claim": "LLN+Diag is within the spread of softmax", "outcome": "holds", "numbers": "5.70 against 6.00"},
            {"claim": "LLN is ahead", "outcome": "does not hold", "numbers": "5.9 against 5.7"},
            {"claim": "It is faster", "outcome": "inconclusive", "numbers": "one length"},
        ],
        "timing": {
            "lengths": [256, 1024, 4096],
            "series": [
                {"label": "softmax", "seconds": [0.001, 0.016, 0.25], "bytes": [1e6, 16e6, 256e6]},
                {"label": "LLN", "seconds": [0.002, 0.008, 0.032], "bytes": None},
            ],
        },
        "maps": maps(),
    }  # fmt: skip


def write_sample(folder: Path, data: dict[str, Any] | None = None, name: str = "fig8.json") -> Path:
    return write_result(folder / name, experiment() if data is None else data, seed=0)
