"""`python -m lln_lab.pages.measured docs` writes docs/measured.md from the training results in docs/results.

What a reader wants comes first: the verdicts at a glance, then of each experiment the scores, the verdicts and the picture.
How it was run, its cost and the paper's own tables are folded.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lln_lab.experiments.verdict import OPEN, by_what_is_missing
from lln_lab.pages.runs_in_words import described, in_short
from lln_lab.pages.tables import markdown, readable, with_names


@dataclass(frozen=True)
class Part:
    """A result, and its heading below the section's (none for the result that opens a section)."""

    name: str
    heading: str = ""


SECTIONS: dict[str, tuple[Part, ...]] = {
    "Pre-training a small RoBERTa (Figure 8)": (
        Part("fig8"),
        Part("fig8b", "Figure 8b: the loss scale of float16"),
    ),
    "GLUE after pre-training (Table 1)": (
        Part("table1", "SST-2 and QNLI, three attentions"),
        Part("table1_all", "Four tasks, fourteen methods"),
    ),
    "Vision transformer on dogs vs cats (Table 3)": (Part("table3"),),
    "Fixed alpha = beta against matching (Figure 10)": (
        Part("fig10"),
        Part("fig10b", "Figure 10b: the loss scale of DeiT-tiny"),
    ),
    "Long Range Arena (Tables 4 and 5)": (
        Part("lra", "Text, ListOps and Image: five attentions, three seeds"),
        Part("lra_pairs", "Retrieval and Pathfinder"),
        Part("lra_image", "Image again, longer"),
        Part("lra_others", "Fifteen other attentions, one seed"),
    ),
    "Recall and needle against length": (Part("length"),),
    "Sensitivity to alpha and beta": (Part("sensitivity"),),
    "Are queries and keys Gaussian?": (Part("gaussian"),),
    "A causal language model": (Part("causal_lm"),),
}
# Tables that say what a run cost, or give its details: folded.
FOLDED = ("Seconds per step", "Megabytes kept", "CPU minutes", "Queries and keys", "Gradient norm")
HEAD = """<!-- Made from the JSON in docs/results by `python -m lln_lab.pages.measured docs`; do not edit. -->
# Training, measured

Every training experiment of the paper, at CPU size. Models, data and budgets are smaller than the paper's by orders of
magnitude: the results compare attentions under equal conditions and say nothing about large models.

A claim gets a verdict only if softmax itself has learned the task and there are three seeds; otherwise it is inconclusive
([what a verdict needs](experiments.md#what-a-verdict-needs)). A paired gain is the mean difference between runs with the same
seed, positive where LLN is better, with its 95 % interval in brackets.
"""


def page(folder: Path) -> str:
    found = {
        part.name: json.loads(path.read_text())
        for parts in SECTIONS.values()
        for part in parts
        if (path := folder / f"{part.name}.json").exists()
    }
    lines = [HEAD, *at_a_glance(found)]
    for heading, parts in SECTIONS.items():
        present = [part for part in parts if part.name in found]
        if present:
            lines += section(heading, present, found, folder)
    return "\n".join(lines).rstrip() + "\n"


def at_a_glance(found: dict[str, dict[str, Any]]) -> list[str]:
    """The claims that have a verdict, and how many of each section have none yet."""
    lines = ["## Verdicts at a glance", "", "| experiment | claim | verdict |", "| --- | --- | --- |"]
    for heading, parts in SECTIONS.items():
        verdicts = [v for part in parts for v in found.get(part.name, {}).get("verdicts", ())]
        decided = [v for v in verdicts if v["outcome"] != OPEN]
        where = f"[{heading}](#{anchor(heading)})"
        lines += [f"| {where} | {with_names(v['claim'])} | **{v['outcome']}** |" for v in decided]
        if pending := len(verdicts) - len(decided):
            rest = f"{pending} {'other ' if decided else ''}{'claim' if pending == 1 else 'claims'}"
            lines.append(f"| {where} | {rest} | inconclusive |")
    return [*lines, ""]


def section(heading: str, parts: list[Part], found: dict[str, dict[str, Any]], folder: Path) -> list[str]:
    lines = [f"## {heading}", ""]
    papers: dict[str, dict[str, Any]] = {}
    for part in parts:
        if part.heading:
            lines += [f"### {part.heading}", ""]
        picture = part.name if (folder / f"{part.name}.svg").exists() else None
        lines += result(part.name, found[part.name], picture)
        for table in found[part.name]["tables"]:
            if table.get("paper"):
                papers.setdefault(table["paper"]["title"], table["paper"])
    if papers:
        lines += folded(
            "The paper's own figures", [line for table in papers.values() for line in [*markdown(table), ""]]
        )
    return lines


def result(name: str, found: dict[str, Any], picture: str | None) -> list[str]:
    lines = [in_short(found), ""]
    cost = list[str]()
    for table in found["tables"]:
        into = cost if readable(table["title"]).startswith(FOLDED) else lines
        into += [*markdown(table), ""]
        if table.get("note"):
            into += [readable(table["note"]), ""]
    lines += judged(found["verdicts"])
    if picture:
        lines += [f"![{found['title']}](results/{picture}.svg)", ""]
    if cost:
        lines += folded("Time, memory and details", cost)
    run = ["```", found["provenance"]["command"], "```", "", *described(found), ""]
    return [*lines, *folded("How it was run", run), f"All numbers: [{name}.json](results/{name}.json).", ""]


def judged(verdicts: list[dict[str, Any]]) -> list[str]:
    """Verdicts as a list; claims that lack the same thing for a verdict stand together below it."""
    stand, lacking = by_what_is_missing(verdicts)
    lines = [f"- **{one['outcome'].capitalize()}**: {said(one)}" for one in stand]
    lines += [""] if lines else []
    for missing, claims in lacking.items():
        lines += [f"**Inconclusive**, because {with_names(missing)}:", "", *(f"- {said(one)}" for one in claims), ""]
    return lines


def said(verdict: dict[str, Any]) -> str:
    return f"{with_names(verdict['claim'])}: {with_names(verdict['numbers'])}"


def folded(summary: str, lines: list[str]) -> list[str]:
    return ["<details markdown>", f"<summary>{summary}</summary>", "", *lines, "</details>", ""]


def anchor(heading: str) -> str:
    """As the site makes it: lower case, words joined by hyphens, the rest dropped."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return "-".join(kept.split())


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    (docs / "measured.md").write_text(page(docs / "results"))
