"""An encoder with linear attention in folders beside it: converted in closed form, distilled, and with all weights learned.

    python tools/linear_encoder.py MODEL texts.jsonl [--block-size 12] [--calibrate 64] [--steps 60] [--low-rank 16]
    python tools/linear_encoder.py MODEL texts.jsonl --weight-steps 500
    python tools/linear_encoder.py MODEL texts.jsonl --softmax-layers 4 --steps 0

MODEL is a folder with a tokenizer. Texts are taken whole and padded to the longest of a batch; `lln convert` and `lln distil`
choose texts that fill a given length. MODEL_closed, MODEL_distilled and MODEL_linear.json (steps and CPU time) are written;
with the costliest layers left softmax, their number is in the names: MODEL_4_closed. Weight steps go on from there with
learn="everything" and write MODEL_weights.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

import lln.hf
from lln.results import write_result

parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
parser.add_argument("model", type=Path)
parser.add_argument("texts", type=Path)
for option, value in (
    ("block-size", 12),
    ("calibrate", 64),
    ("steps", 60),
    ("batch-size", 8),
    ("low-rank", 16),
    ("softmax-layers", 0),
    ("weight-steps", 0),
):
    parser.add_argument(f"--{option}", type=int, default=value)


def main() -> None:
    given = parser.parse_args()
    torch.set_num_threads(1)
    texts = [json.loads(line)["text"] for line in given.texts.read_text().splitlines()]
    tokenizer, model = AutoTokenizer.from_pretrained(given.model), AutoModel.from_pretrained(given.model).eval()
    options = {"tokenizer": tokenizer, "max_length": 512, "batch_size": given.batch_size}
    named = f"{given.model.name}_{given.softmax_layers}" if given.softmax_layers else given.model.name
    kept = {"keep_softmax": "auto", "softmax_layers": given.softmax_layers} if given.softmax_layers else {}
    start = time.process_time()
    lln.hf.convert(model, "lln_near_far", texts[: given.calibrate], block_size=given.block_size, **kept, **options)
    seconds = {"convert": time.process_time() - start}
    stages: dict[str, dict[str, Any]] = {"closed": {}}
    if given.steps:
        stages["distilled"] = {"steps": given.steps, "low_rank": given.low_rank}
    if given.weight_steps:
        original = AutoModel.from_pretrained(
            given.model
        ).eval()  # low-rank updates have changed the model's softmax self
        stages["weights"] = {
            "steps": given.weight_steps, "learn": "everything", "stage": "end_to_end", "passes": 2, "teacher": original,
        }  # fmt: skip
    for stage, how in stages.items():
        if how:
            start = time.process_time()
            lln.hf.distil(model, texts, progress=False, **how, **options)
            seconds[stage] = time.process_time() - start
        folder = given.model.with_name(f"{named}_{stage}")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    arguments = {name: value for name, value in vars(given).items() if not isinstance(value, Path)}
    found = {
        "kind": "linear encoder",
        "model": given.model.name,
        "texts": len(texts),
        **arguments,
        "cpu_seconds": seconds,
    }
    print(write_result(given.model.with_name(f"{named}_linear.json"), found))


if __name__ == "__main__":
    main()
