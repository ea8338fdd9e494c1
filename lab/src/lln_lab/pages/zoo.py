"""docs/zoo.md, made from the registry and from measured results: `python -m lln_lab.pages.zoo docs`.

The folder holds results/zoo*.json and results/peers.json where they were measured (`lln bench zoo`, `lln bench peers`).
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lln.zoo import registry

FLAGS = {
    "bidirectional": "bidirectional",
    "causal": "causal",
    "cross": "cross-attention",
    "fixed_length": "fixed length",
    "dense": "dense matrix",
    "deterministic": "deterministic",
    "learned": "own weights",
    "equivariant": "equivariant",
    "replaces_feed_forward": "replaces feed-forward",
}
HEAD = """# The zoo

Every attention of the paper's tables and several newer ones, under one interface. Each is written from the equations of its own
paper and passes the same tests (`tests/zoo`): comparison with a literal oracle, gradients, padding, causality, independence of
samples, odd lengths, dtypes, saving, and growth of cost with length.

```python
import torch
import lln.zoo

lln.zoo.names()
layer = lln.zoo.build("performer", embed_dim=768, num_heads=12, max_length=4096)
x, mask = torch.randn(2, 100, 768), torch.arange(100) < torch.tensor([[100], [80]])
y = layer(x, key_mask=mask)     # x (B, N, E); mask (B, N), True where a key counts
P = layer.dense(x)              # (B, H, N, N), if the member has a matrix
f = lln.zoo.attention("elu")    # f(q, k, v), heads first, for members without weights
```

<!-- Made from the registry and docs/results by `python -m lln_lab.pages.zoo docs`; do not edit. -->
"""


SIDE_BY_SIDE = """## Side by side

The tables show a training step (forward, backward, AdamW) of an encoder at batch 1, relative to softmax in the same round. In
brackets: the paper's own ratio (Table 2 on an A100; Table 4, Long Range Arena, the mean over the tasks of that length). Where
softmax ran out of time, absolute values stand instead. Peak memory is measured beyond that of the process before the model was
built. Softmax is torch's fused kernel, which never stores the N x N matrix, unlike the paper's.

Some members are faster than LLN, for these reasons: `relu` and `quadratic` compute no exponentials. The last layer of the
TransNormers, which is the one timed alone, has no denominator. None of these measures moments. `block_diagonal` is part of
LLN+Diag. `nystromformer` multiplies by 64 landmarks in plain matrix products. `flash` and `tnn` replace the feed-forward layer,
so their attention layer is the whole block. At the RoBERTa shape, the four projections take 4.7 million operations per token,
and LLN's own products 0.2 million. The linear members are therefore close together, and their order differs between two layers
and twelve.
"""


def markdown(measured: Sequence[dict[str, Any]] = (), peers: dict[str, Any] | None = None) -> str:
    """The page."""
    parts = [HEAD, _members(), _flags(), _options(), _departures()]
    if measured:
        parts.append(SIDE_BY_SIDE + "".join(map(_measured, measured)))
    if peers is not None:
        parts.append(_peers(peers))
    return "\n".join(parts)


def _members() -> str:
    rows = [
        (f"`{c.name}`", f"{c.title}<br>{c.reference}", _escape(c.equation), c.time, c.memory)
        for c in map(registry.card, registry.names())
    ]
    head = "## Members\n\nN tokens, head size d; the other letters are options of the member.\n\n"
    return head + _table(("name", "attention", "equation", "time", "memory"), rows)


def _flags() -> str:
    rows = [
        (f"`{name}`", *("✓" if getattr(registry.card(name), flag) else "" for flag in FLAGS))
        for name in registry.names()
    ]
    note = (
        "\nAll members support padding: masked keys have no influence, whatever they hold, and a row without keys gives zeros. "
        "*Equivariant*: permuted tokens give permuted outputs. Members that are not deterministic draw random numbers once, "
        "from `seed` or torch's generator; `redraw()` draws new ones.\n"
    )
    return "## What each supports\n\n" + _table(("name", *FLAGS.values()), rows) + note


def _options() -> str:
    rows = []
    for name in registry.names():
        defaults = ", ".join(
            f"{field.name}={field.default!r}" for field in dataclasses.fields(registry.member(name).options)
        )
        rows.append((f"`{name}`", f"`{defaults}`" if defaults else "none"))
    return "## Options and their defaults\n\n" + _table(("name", "options"), rows)


def _departures() -> str:
    rows = [(f"`{c.name}`", c.departures or "none", c.reproduced) for c in map(registry.card, registry.names())]
    head = "## Departures from the papers\n\nThe source file of each member gives the reasons.\n\n"
    return head + _table(("name", "departures", "tested property"), rows)


def _measured(result: dict[str, Any]) -> str:
    source, plan = result["provenance"], result["plan"]
    machine = source["machine"]
    text = (
        f"\n`{source['command']}`, {source['time'][:10]}, torch {source['versions']['torch']}, {machine['processor']}, "
        f"threads: {plan['threads']}, clock: {plan['clock']}, rounds: {plan['rounds']}.\n"
    )
    for shape in plan["lengths"]:
        size = {**result["shapes"][shape], **({"layers": plan["layers"][shape]} if shape in plan["layers"] else {})}
        said = ", ".join(f"{key.replace('_', ' ')} {value:,}" for key, value in size.items())
        text += f"\n### Shape `{shape}`: {said}\n"
        rows = [row for row in result["rows"] if row["shape"] == shape]
        lengths = sorted({row["length"] for row in rows})
        for title, measure, paper in (
            ("Time of a training step", "step_seconds", "time"),
            ("Peak memory", "peak_bytes", "memory"),
            ("Attention layer alone, forward", "attention_forward_seconds", None),
            ("Attention layer alone, forward and backward", "attention_train_seconds", None),
        ):
            members = dict.fromkeys(row["member"] for row in rows)
            lines = [
                (f"`{member}`", *(_cell(_find(rows, member, length), measure, paper) for length in lengths))
                for member in members
            ]
            table = _table(("", *(f"{length:,}" for length in lengths)), lines)
            if paper is None:
                text += f"\n<details markdown>\n<summary>{title}</summary>\n\n{table}\n</details>\n"
            else:
                text += f"\n**{title}**\n\n{table}"
        text += _sizes(rows) + _fastest(rows, lengths)
    return text


def _fastest(rows: list[dict[str, Any]], lengths: list[int]) -> str:
    """Members faster than LLN and LLN+Diag in the attention layer alone."""
    text = (
        "\n<details markdown>\n<summary>Members faster than LLN and LLN+Diag, attention layer alone</summary>\n\n"
        "Times have a noise of a tenth or more.\n\n"
    )
    for length in lengths:
        for measure, what in (("attention_forward_seconds", "forward"), ("attention_train_seconds", "training")):
            times = {
                row["member"]: row[measure]
                for row in rows
                if row["length"] == length and row["status"] == "ok" and row[measure]
            }
            told = []
            for ours in ("lln", "lln_diag"):
                if ours in times:
                    ahead = sorted((name for name in times if times[name] < times[ours]), key=times.__getitem__)
                    told.append(f"than `{ours}`: {', '.join(f'`{name}`' for name in ahead) or 'none'}")
            text += f"- {length:,}, {what}: {'; '.join(told)}.\n"
    return text + "\n</details>\n"


def _sizes(rows: list[dict[str, Any]]) -> str:
    """Encoders whose number of weights differs from the softmax encoder's by more than 1 %."""
    off = {
        f"`{row['member']}` {row['parameters_ratio']:.2f} at {row['length']:,}"
        for row in rows
        if row.get("parameters_ratio") is not None and abs(row["parameters_ratio"] - 1) > 0.01
    }
    if not off:
        return "\nAll encoders have as many weights as the softmax encoder, within 1 %.\n"
    return f"\nNumber of weights relative to the softmax encoder, if more than 1 % apart: {', '.join(sorted(off))}.\n"


def _peers(result: dict[str, Any]) -> str:
    source = result["provenance"]
    rows = []
    for row in result["rows"]:
        ratios = [
            f"{row[kind]['theirs_over_ours']:.2f}" if kind in row else "not installed" for kind in ("forward", "train")
        ]
        package = f"{row['package']} {row['version'] or ''}".strip()
        rows.append((package, f"`{row['member']}`", f"{row['embed_dim']}", f"{row['length']:,}", *ratios, row["same"]))
    return (
        "## Against other packages\n\n"
        "Their time divided by ours, for whole layers with projections: above 1, ours is faster.\n\n"
        f"`{source['command']}`, {source['time'][:10]}, torch {source['versions']['torch']}.\n\n"
        + _table(("package", "member", "width", "length", "forward", "training", "same on both sides"), rows)
    )


def _find(rows: list[dict[str, Any]], member: str, length: int) -> dict[str, Any]:
    return next(row for row in rows if row["member"] == member and row["length"] == length)


def _cell(row: dict[str, Any], measure: str, paper: str | None) -> str:
    if row["status"] != "ok":
        return str(row["status"])
    value, ratio = row[measure], row[f"{measure}_ratio"]
    absolute = f"{value / 1e6:.0f} MB" if measure == "peak_bytes" else f"{1e3 * value:.1f} ms"
    if ratio is None or row["member"] == "softmax":
        return absolute
    return f"{ratio:.2f} ({row['paper'][paper]:.2f})" if row["paper"] and paper else f"{ratio:.2f}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def page(docs: Path) -> str:
    """The page, from the results in `docs`."""
    measured = [json.loads(path.read_text()) for path in sorted((docs / "results").glob("zoo*.json"))]
    peers = docs / "results" / "peers.json"
    return markdown(measured, json.loads(peers.read_text()) if peers.exists() else None)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "zoo.md").write_text(page(folder))
