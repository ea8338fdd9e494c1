"""All weights of a converted encoder learn to follow its original: what distilling the attention alone leaves.

    python tools/follow_encoder.py MODEL texts.jsonl [--steps 150] [--rate 3e-4]

Starts from MODEL_distilled (tools/linear_encoder.py) and writes MODEL_weights and MODEL_weights.json. No label is used:

    loss = |h - h*|^2 / |h* - mean(h*)|^2        h the last hidden states of tokens that count, h* the original's
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

import lln.hf  # noqa: F401  a converted model is loaded as one
from lln.results import write_result

parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
parser.add_argument("model", type=Path)
parser.add_argument("texts", type=Path)
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--rate", type=float, default=3e-4)


def loss_of(model: Any, original: Any, batch: dict[str, Tensor]) -> Tensor:
    counts = batch["attention_mask"].bool()
    with torch.no_grad():
        wanted = original(**batch).last_hidden_state[counts]
    found = model(**batch).last_hidden_state[counts]
    return (found - wanted).square().sum() / (wanted - wanted.mean(dim=0)).square().sum()


def main() -> None:
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    texts = [json.loads(line)["text"] for line in given.texts.read_text().splitlines()]
    beside = given.model.with_name
    tokenizer, original = AutoTokenizer.from_pretrained(given.model), AutoModel.from_pretrained(given.model).eval()
    model = AutoModel.from_pretrained(beside(f"{given.model.name}_distilled")).eval().requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, given.rate, total_steps=given.steps)
    losses, start = [], time.process_time()
    for _ in range(given.steps):
        chosen = [texts[i] for i in torch.randint(len(texts), (given.batch_size,)).tolist()]
        batch = tokenizer(chosen, padding=True, return_tensors="pt")
        loss = loss_of(model, original, {name: batch[name] for name in ("input_ids", "attention_mask")})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    found = {
        "kind": "followed encoder", "model": given.model.name, "texts": len(texts), "steps": given.steps,
        "batch_size": given.batch_size, "rate": given.rate, "cpu_seconds": time.process_time() - start,
        "losses": [sum(part) / len(part) for part in (losses[:10], losses[-10:])],
    }  # fmt: skip
    folder = beside(f"{given.model.name}_weights")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(write_result(folder.with_suffix(".json"), found), found["cpu_seconds"], found["losses"])


if __name__ == "__main__":
    main()
