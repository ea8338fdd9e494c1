"""`python -m lln_lab.pages.query_length docs` writes docs/query-length.md from docs/results/query_length.json."""

import json
import sys
from pathlib import Path
from typing import Any

from lln_lab.names import in_sentence, name_of
from lln_lab.pages.tables import minus

HEAD = """<!-- Made from docs/results/query_length.json by `python -m lln_lab.pages.query_length docs`; do not edit. -->
# Who forgets the length of the query?

Softmax attends more sharply when the query is longer: with \\(q = |q|\\,u\\), its weights are
\\(P_j \\propto \\exp(|q|\\, u \\cdot k_j / \\sqrt d)\\). The length of a query is therefore how
a model asks for one token rather than for an average.

Linear attention weighs keys by \\(\\phi(q) \\cdot \\phi(k_j)\\), divided by their sum. If the features are homogeneous,
\\(\\phi(|q| u) = |q|^p \\phi(u)\\), the length appears above and below the fraction and cancels: such an attention cannot
tell a long query from a short one. The exponential features of LLN are not homogeneous.

![Entropy of a row against the length of its query](results/query_length.svg)

Each sequence holds {tokens} queries, of {count} lengths in the same random directions, from √d/4 to 4√d, and as many Gaussian
keys (d = {dim}, {seeds} seeds). *Follows* is how far the mean entropy of a row falls from the shortest to the longest queries,
as a share of softmax's fall.
"""
COLUMNS = ("attention", "follows", "entropy at √d/4", "at √d", "at 4√d", "gap at √d/4", "at 4√d")
TAIL = """
Members with learned weights (marked *) are measured as they start, before training. Entropies are in bits. A gap, 1 − |λ₂|, is
that of a matrix whose queries all have the given length; it needs rows of positive weights that sum to one.
"""
WINDOW = "Sequences this short fit into Longformer's window, which makes it softmax."
BY_TOKENS = """
## Against the number of tokens

How many bits the mean entropy of a row is below that of uniform attention, log₂ N, with queries of length √d. Where it stays
the same, as softmax's and LLN's do, a row spreads over a fixed share of the keys. A block or a window holds a fixed number of
keys, whatever N is: softmax inside blocks gains a bit with every doubling, and LLN+Diag, half of which it is, about 0.4 bits.
"""


def page(found: dict[str, Any]) -> str:
    head = HEAD
    sizes = {"count": len(found["lengths"]), "tokens": found["directions"] * len(found["lengths"])}
    for name, value in {**sizes, "dim": found["dim"], "seeds": found["seeds"]}.items():
        head = head.replace(f"{{{name}}}", str(value))
    members = sorted(found["members"].items(), key=lambda pair: -pair[1]["follows"])
    lines = [head, "| " + " | ".join(COLUMNS) + " |", "| --- |" + " ---: |" * (len(COLUMNS) - 1)]
    lines += ["| " + " | ".join(row(name, one)) + " |" for name, one in members]
    lines += [TAIL.rstrip(), *([WINDOW] if round(found["members"]["longformer"]["follows"], 2) == 1 else []), ""]
    lines += [f"- **{v['outcome'].capitalize()}**: {in_sentence(v['claim'])}" for v in found["verdicts"]]
    lines += by_tokens(found)
    why = {
        reason: [n for n, r in found["not_measured"].items() if r == reason]
        for reason in found["not_measured"].values()
    }
    left_out = "; ".join(f"{', '.join(map(name_of, names))} ({reason})" for reason, names in why.items())
    command = found["provenance"]["command"]
    lines += ["", f"Not measured: {left_out}.", "", f"`{command}`, [query_length.json](results/query_length.json)."]
    return "\n".join(lines) + "\n"


def by_tokens(found: dict[str, Any]) -> list[str]:
    """Those nearest to softmax at the longest sequences first."""
    softmax = found["members"]["softmax"]["by_tokens"][-1]
    members = sorted(found["members"].items(), key=lambda pair: abs(pair[1]["by_tokens"][-1] - softmax))
    lines = [BY_TOKENS, "| attention | " + " | ".join(f"{n:,} tokens" for n in found["tokens"]) + " |"]
    lines += ["| --- |" + " ---: |" * len(found["tokens"])]
    for name, one in members:
        told = [minus(f"{bits:.2f}") for bits in one["by_tokens"]]
        lines.append("| " + " | ".join([name_of(name) + ("*" if one["learned"] else ""), *told]) + " |")
    return lines


def row(name: str, one: dict[str, Any]) -> list[str]:
    entropy, gap = one["by_length_of_query"], one["by_temperature"]["gap"]
    middle = len(entropy) // 2
    numbers = [one["follows"], entropy[0], entropy[middle], entropy[-1], gap[0], gap[-1]]
    told = ["–" if x is None else minus(f"{x:.2f}") for x in numbers]
    return [name_of(name) + ("*" if one["learned"] else ""), *told]


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    (docs / "query-length.md").write_text(page(json.loads((docs / "results" / "query_length.json").read_text())))
