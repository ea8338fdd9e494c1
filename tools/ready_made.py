"""Pack what a distillation learned into a small file for `lln.hf.convert(model, weights=FILE)`.

    python tools/ready_made.py LEARNED DISTILLED BASE OUT

LEARNED is the distillation's checkpoint, distil.safetensors (alpha, beta, bias, weights and maps of each layer, factors of
low-rank updates, beside the optimiser's state), DISTILLED the folder of the model it ended in, whose config.lln is taken, BASE
the original's folder. Maps and factors are rounded to float16; numbers of heads stay float32. The file is tried: the cosine of
both models' hidden states is printed.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel

from lln.hf import convert
from lln.hf.conversion.ready_made import LEFT, MAP, RIGHT, write_conversion
from lln.hf.modules import named_attention_modules

PARAMETER = "parameter/"
FACTORS = (".lora_A.lln.weight", ".lora_B.lln.weight")


def tensors_of(learned: dict[str, Tensor], base: Any) -> dict[str, Tensor]:
    """The learned numbers under the names that the file has for them."""
    modules = list(named_attention_modules(base))
    found = {}
    for name, x in learned.items():
        number, _, kind = name.partition(".")
        if number.isdigit() and kind == "key_map":
            found[MAP + modules[int(number)]] = x.half()
        elif number.isdigit():
            found[f"{modules[int(number)]}.lln.{kind}"] = x
        elif name.endswith(FACTORS[0]):
            found[RIGHT + name.removesuffix(FACTORS[0]) + ".weight"] = x.half()
        elif name.endswith(FACTORS[1]):
            found[LEFT + name.removesuffix(FACTORS[1]) + ".weight"] = (x / x.shape[1]).half()  # W + B A / r
        else:
            raise SystemExit(f"{name} is nothing that a file of learned numbers has")
    return found


def main() -> None:
    """Pack, try, and say how large and how near."""
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    learned, distilled, original, out = map(Path, sys.argv[1:])
    base, wanted = (AutoModel.from_pretrained(folder).eval() for folder in (original, distilled))
    options = json.loads((distilled / "config.json").read_text())["lln"]
    numbers = {n.removeprefix(PARAMETER): x for n, x in load_file(learned).items() if n.startswith(PARAMETER)}
    write_conversion(out, base, [options], tensors_of(numbers, base))
    ids = torch.randint(1000, base.config.vocab_size, (4, 256), generator=torch.Generator().manual_seed(0))
    made = convert(copy.deepcopy(base), weights=out)
    with torch.no_grad():
        found, expected = (model(input_ids=ids).last_hidden_state for model in (made, wanted))
    cosine = float(torch.cosine_similarity(found, expected, dim=-1).mean())
    print(f"{out.stat().st_size:,} bytes; cosine of hidden states with the distilled model {cosine:.6f}")


if __name__ == "__main__":
    main()
