"""docs/gpu-sheet.md, made from docs/results/gpu_sheet.json: `python -m lln_lab.pages.gpu_sheet docs`."""

import json
import sys
from pathlib import Path
from typing import Any

HEAD = """# The GPU kernels, predicted

Predicted, not measured: nobody has run these kernels on a GPU. Every kernel was compiled ahead of time for the cards below
and its machine code read; times follow from the bytes and FLOPs that a launch has, and are what a card could do at best.

Made from the JSON in `docs/results` by `python -m lln_lab.pages.gpu_sheet docs`; do not edit it. `{command}`
([gpu_sheet.json](results/gpu_sheet.json)). How to send a measurement: [on a GPU](gpu.md#send-a-measurement).

## What is assumed

{shape}

- **Bytes**: every tensor that a launch takes is moved once, or twice where it is read and written again in place. What
  several programs read, or one program reads twice, is assumed to come from the cache the second time. *Least* is q, k, v and
  the output forward, and backward q, k, v, the output, its gradient and dq, dk, dv; for a step of decoding the state, read
  and written.
- **FLOPs**: those of the products. Exponentials and sums are not counted.
- **Time** of a launch: the larger of bytes / bandwidth and FLOPs / peak, with the data sheets' figures; of an operation:
  their sum, without gaps between launches.

{cards}
"""


def page(docs: Path) -> str:
    found = json.loads((docs / "results" / "gpu_sheet.json").read_text())
    shape = found["shape"]
    words = (
        f"Batch {shape['batch']}, {shape['heads']} heads, N = {shape['length']:,}, D = Dv as told; blocks of "
        f"{shape['block_size']}; near-far attention with {shape['neighbours']} neighbours and {shape['first_tokens']} first "
        "tokens, which take a launch of their own on the way back; α and β with gradients."
    )
    parts = [HEAD.format(command=found["provenance"]["command"], shape=words, cards=_cards(found["cards"]))]
    parts += ["## Operations", "", *_operations(found), "", *_peers(found), ""]
    parts += ["## Matching", "", _matching(found["matching"]), ""]
    parts += ["## Kernels", "", *_spilling(found["kernels"]), "", *_kernels(found["kernels"], found["plan"]), ""]
    if found["peers"]["kernels"]:
        parts += ["## Kernels of fla-core", "", *_kernels(found["peers"]["kernels"], found["plan"]), ""]
    return "\n".join(parts).rstrip() + "\n"


def _cards(cards: dict[str, Any]) -> str:
    rows = ["| card | target | TB/s | TFLOPS bfloat16 | TFLOPS float32 |", "| --- | --- | --- | --- | --- |"]
    for name, card in cards.items():
        peak = card["tflops"]
        rows.append(
            f"| {name} | {card['target']} | {card['terabytes_per_second']:g} | {peak['bfloat16']:g} | {peak['float32']:g} |"
        )
    return "\n".join(rows)


def _operations(found: dict[str, Any]) -> list[str]:
    named = {card["target"]: name for name, card in found["cards"].items()}
    targets = found["plan"]["targets"]
    head = ["operation", "D", "dtype", "launches", "bytes / least", *(f"{named[t]}, ms" for t in targets)]
    rows = [head, ["---"] * len(head)]
    by_key: dict[tuple[str, int, str], dict[str, Any]] = {}
    for row in found["operations"]:
        by_key.setdefault((row["operation"], row["size"], row["dtype"]), {})[row["target"]] = row
    for (name, size, dtype), own in by_key.items():
        some = next(iter(own.values()))
        times = [f"{own[t]['milliseconds']:.3f}" if t in own else "" for t in targets]
        rows.append(
            [name, str(size), dtype, str(some["launches"]), f"{some['bytes'] / some['least_bytes']:.2f}", *times]
        )
    return ["| " + " | ".join(row) + " |" for row in rows]


def _peers(found: dict[str, Any]) -> list[str]:
    peers = found["peers"]
    if not peers["kernels"]:
        return [peers.get("missing", "fla-core was left out.")]
    lines = [
        f"fla-core {peers['version']}, causal, on the same shape. *With features*: LLN by its kernels needs a pass that writes "
        "the features of q and k, one more column for the normaliser and a pass that divides; they are counted in bytes. Its "
        "own kernels are timed by bytes alone.",
        "",
        "| operation | D | dtype | card | launches | MB | MB with features | ms | ms with features | LLN causal, ms | "
        "LLN bidirectional, ms |",
        "|" + " --- |" * 11,
    ]
    named = {card["target"]: name for name, card in found["cards"].items()}
    ours = {(r["operation"], r["target"], r["dtype"], r["size"]): r["milliseconds"] for r in found["operations"]}
    for row in peers["operations"]:
        way = row["operation"].split()[-1]
        own = [
            ours.get((f"LLN, {kind} {way}", row["target"], row["dtype"], row["size"]))
            for kind in ("causal", "bidirectional")
        ]
        told = [f"{x:.3f}" if x is not None else "" for x in own]
        lines.append(
            f"| {row['operation']} | {row['size']} | {row['dtype']} | {named[row['target']]} | {row['launches']} | "
            f"{row['bytes'] / 1e6:.0f} | {row['bytes_with_features'] / 1e6:.0f} | {row['milliseconds']:.3f} | "
            f"{row['milliseconds_with_features']:.3f} | {' | '.join(told)} |"
        )
    return lines


def _matching(found: list[dict[str, Any]]) -> str:
    lines = [
        "D = 64 in bfloat16, one layer. No value is read back. The kernels' launches include torch's `topk`, counted "
        "once. How long the search takes is not predicted: one program a head, which waits more than it "
        "moves.",
        "",
        "| method | by | launches | GB | times q and k |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in found:
        share, by = row["bytes"] / row["bytes_of_q_and_k"], {"triton": "kernels", "chunked": "plain torch"}
        words = f"| {row['method']} | {by[row['backend']]} | {row['launches']:,} |"
        lines.append(f"{words} {row['bytes'] / 1e9:.2f} | {share:.1f} |")
    return "\n".join(lines)


def _spilling(kernels: list[dict[str, Any]]) -> list[str]:
    lines = []
    for dtype in dict.fromkeys(row["dtype"] for row in kernels):
        own = [row for row in kernels if row["dtype"] == dtype]
        bad = [row for row in own if not row.get("fits")]
        where = f", on {', '.join(dict.fromkeys(row['target'] for row in bad))}" if bad else ""
        lines.append(f"- {dtype}: {len(own)} compiled, {len(bad) or 'none'} of them spill or do not fit{where}.")
    return lines


def _kernels(kernels: list[dict[str, Any]], plan: dict[str, Any]) -> list[str]:
    limits = {row["target"]: row["shared_limit"] // 1024 for row in kernels}
    lines = [
        "Registers a thread; **stack** in bytes where anything is spilled; shared memory in KB, of "
        + ", ".join(f"{limit} on {target}" for target, limit in limits.items())
        + "; instructions of the tensor cores; instructions of exponentials. A dash: it was not compiled.",
        "",
        "| kernel | D | dtype | " + " | ".join(plan["targets"]) + " |",
        "|" + " --- |" * (3 + len(plan["targets"])),
    ]
    by_key: dict[tuple[str, int, str], dict[str, Any]] = {}
    for row in kernels:
        by_key.setdefault((row["kernel"], row["size"], row["dtype"]), {})[row["target"]] = row
    for (name, size, dtype), own in by_key.items():
        cells = [_cell(own.get(target)) for target in plan["targets"]]
        lines.append(f"| `{name}` | {size} | {dtype} | {' | '.join(cells)} |")
    return lines


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    if row.get("failed"):
        return "**does not compile**"
    spilled = f"**stack {row['stack']}**, " if row["stack"] or row["spills"] else ""
    shared = f"{row['shared'] / 1024:.0f} KB"
    shared = f"**{shared}**" if row["shared"] > row["shared_limit"] else shared
    return f"{row['registers']}, {spilled}{shared}, {row['tensor_cores']} tc, {row['exponentials']} exp"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "gpu-sheet.md").write_text(page(folder))
