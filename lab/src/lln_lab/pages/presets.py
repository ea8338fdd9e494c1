"""`python -m lln_lab.pages.presets docs` writes docs/presets.md from the table of sources."""

import sys
from pathlib import Path
from typing import Any

from lln_lab.experiments.sources import INHERITED, OPEN_QUESTIONS, PRESETS, ROWS

TITLES = {
    "fig8": "Pre-training (`fig8`, `gaussian`, the first part of `table1`)",
    "table1": "GLUE (`table1`)",
    "table3": "Dogs vs cats (`table3`, `fig9`, `fig10`)",
    "fig9": "Figure 9 (`fig9`), where it differs from Table 3",
    "fig10b": "DeiT-tiny (`fig10b`)",
    "lra": "Long Range Arena (`table4`, `table5`, `sensitivity`)",
    "gaussian": "Are queries and keys Gaussian (`gaussian`)",
}
HEAD = """<!-- Made from lln_lab.experiments.sources by `python -m lln_lab.pages.presets docs`; do not edit. -->
# Presets and their sources

Every hyper-parameter of `--preset paper`: its value, its source, and whether it is the paper's, the recipe's (from the code
base that the paper names) or ours. A test finds a row here for every number of every preset. Recipes were read in the public
repositories facebookresearch/fairseq, pkuzengqi/Skyformer, lucidrains/vit-pytorch, lucidrains/linformer and
facebookresearch/deit.

You can check a preset without a GPU: `lln reproduce fig8 --preset paper --check` counts weights, FLOPs and memory of a step and
takes one tiny step. `--accumulate`, `--precision` and `--checkpointing` change how a step is computed, not its settings.
"""
TAIL = """## Remaining differences from the recipes

- Attention dropout is 0 for every method (0.1 in the recipes): weights of a linear attention cannot be dropped one by one.
- Scores are those of the last step. fairseq and Skyformer report the best of their evaluations.
- Long Range Arena: means leave padding out, where Skyformer's divide by the padded length; the classifier's activation is GELU,
  Skyformer's ReLU. Positions end at the task's length, Skyformer's at the next power of two.
- Dogs vs cats: crops are shifted by up to an eighth and flipped; the example draws a random part of the picture and resizes it.
- DeiT-tiny: none of DeiT's augmentation (mixup, cutmix, random erasing, stochastic depth, label smoothing, averaged weights),
  since Figure 10b is about the scale of gradients, and a warm-up from 0, where DeiT's is from 1e-6.
- Pre-training hides the same number of tokens in every window. Windows cut through sentences, which fairseq's
  `sample_break_mode: complete` keeps whole.
"""


def page() -> str:
    parts = [HEAD]
    for command in PRESETS:
        if command in OPEN_QUESTIONS:
            continue
        parts.append(f"## {TITLES[command]}\n")
        if command in INHERITED:
            prefix, other = INHERITED[command]
            parts.append(f"{f'`{prefix}*`' if prefix else 'All else'} as of `{other}`.\n")
        parts.append("| hyper-parameter | value | whose | source |\n| --- | --- | --- | --- |")
        parts += [
            f"| `{name}` | {shown(value)} | {origin} | {source} |"
            for name, (value, origin, source) in ROWS[command].items()
        ]
        parts.append("")
    questions = ", ".join(f"`{command}`" for command in OPEN_QUESTIONS)
    parts.append(f"## Open questions ({questions})\n\nNothing of them is in the paper: every number is ours.\n")
    return "\n".join([*parts, TAIL])


def shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "never"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    (Path(sys.argv[1]) / "presets.md").write_text(page())
