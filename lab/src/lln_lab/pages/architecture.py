"""`python -m lln_lab.pages.architecture docs` writes the index of the paper into docs/architecture.md.

It is made from docs/paper_index.json; the rest of that page is written by hand.
"""

import json
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- made from paper_index.json -->\n", "<!-- end -->\n"


def items(docs: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((docs / "paper_index.json").read_text())["items"]
    return found


def page(docs: Path) -> str:
    """The page as it should stand in `docs`."""
    before, rest = (docs / "architecture.md").read_text().split(BEGIN)
    return before + BEGIN + table(items(docs)) + END + rest.split(END)[1]


def table(found: list[dict[str, Any]]) -> str:
    head = "| in the paper | what it says | computed by | shown by |\n| --- | --- | --- | --- |\n"
    return head + "".join(map(_row, found))


def _row(entry: dict[str, Any]) -> str:
    if "only_in_a_proof" in entry:
        return f"| {entry['item']} | {entry['says']} | only in a proof: {entry['only_in_a_proof']} | |\n"
    symbols = ", ".join(f"`{symbol.replace(':', '.')}`" for symbol in entry["symbols"])
    note = f" ({entry['note']})" if "note" in entry else ""
    files = dict.fromkeys(test.split("::")[0] for test in entry.get("shown_by", ()))
    return f"| {entry['item']} | {entry['says']} | {symbols}{note} | {', '.join(f'`{f}`' for f in files)} |\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "architecture.md").write_text(page(folder))
