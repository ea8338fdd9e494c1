"""Sections as one page: HTML with everything inside, and nothing that is loaded from elsewhere.

All text goes through the template's escaping. Numbers for plots travel as JSON in a script element, where every "<" is escaped.
The page's policy admits its own scripts by their hashes, and no network.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from lln._version import __version__
from lln_lab.colours import as_css
from lln_lab.experiments.verdict import OPEN, by_what_is_missing
from lln_lab.report.blocks import Block, Picture, Section, Table
from lln_lab.report.maps import Maps
from lln_lab.report.numbers import column, is_numeric
from lln_lab.report.plots import Plot
from lln_lab.report.readers.reader import GROUPS

TITLE = "Linear Log-Normal attention: results"
SCRIPTS = ("scale.js", "dom.js", "plot.js", "maps.js", "page.js")
OUTCOMES = {  # in the order they are counted: style and symbol, so that colour is not all there is
    "holds": ("yes", "✓"),
    "holds within a range": ("partly", "◐"),
    "inconclusive": ("unclear", "?"),
    "does not hold": ("no", "✕"),
}


def render(sections: Sequence[Section], notices: Sequence[str] = (), title: str | None = None) -> str:
    drawings: list[dict[str, Any]] = []
    titles = Counter(section.title for section in sections)
    for section in sections:
        if titles[section.title] > 1:
            section.title += f" ({section.name})"
    groups = []
    for name in GROUPS:
        inside = [section for section in sections if section.group == name]
        if inside:
            groups.append({"name": name, "sections": [_section(one, sections.index(one), drawings) for one in inside]})
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    scripts = [_asset(name) for name in SCRIPTS]
    return environment.from_string(_asset("page.html")).render(
        title=title or TITLE,
        version=__version__,
        groups=groups,
        notices=notices,
        overview=len(sections) != 1 or sections[0].headline is None,
        counts=_counts([verdict.outcome for section in sections for verdict in section.verdicts]),
        style=f":root {{ {as_css()} }}\n{_asset('report.css')}",
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
        drawings=embedded_json(drawings),
    )


def embedded_json(data: Any) -> str:
    """JSON that may stand in a script element: no "<" ends the element, and there is no NaN, which JSON does not know."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _section(section: Section, number: int, drawings: list[dict[str, Any]]) -> dict[str, Any]:
    stand, lacking = by_what_is_missing([asdict(one) for one in section.verdicts])
    blocks = [_block(block, drawings) for block in section.blocks]
    kinds = [block["kind"] for block in blocks]
    opening = kinds.index("maps") + 1 if section.headline and "maps" in kinds else 0
    return {
        "id": f"result-{number + 1}",
        "title": section.title,
        "name": section.name,
        "facts": section.facts,
        "brief": {fact.name: fact.value for fact in section.facts if fact.name in ("Seed", "Commit", "Finished")},
        "verdicts": [one | _badge(one["outcome"]) for one in stand],
        "lacking": [{"missing": missing, "claims": claims, **_badge(OPEN)} for missing, claims in lacking.items()],
        "counts": _counts([verdict.outcome for verdict in section.verdicts]),
        "opening": blocks[:opening],
        "blocks": blocks[opening:],
        "notices": section.notices,
        "headline": section.headline,
        "limits": section.limits,
    }


def _block(block: Block, drawings: list[dict[str, Any]]) -> dict[str, Any]:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Picture):
        return {"kind": "picture", "uri": block.uri, "alt": block.alt}
    data = block.as_data()
    drawings.append(data)
    kind = {Plot: "plot", Maps: "maps"}[type(block)]
    return {"kind": kind, "title": data["title"], "note": data["note"], "number": len(drawings) - 1}


def _table(table: Table) -> dict[str, Any]:
    width = max([len(table.columns), *map(len, table.rows)])
    columns = [*table.columns, *[""] * (width - len(table.columns))]
    padded = [[*row, *[None] * (width - len(row))] for row in table.rows]
    shown = [column([row[at] for row in padded]) for at in range(width)]
    numeric = [at > 0 and all(map(is_numeric, cells)) for at, cells in enumerate(shown)]
    return {
        "kind": "table",
        "title": table.title,
        "note": table.note,
        "columns": list(zip(columns, numeric, strict=True)),
        "rows": [[(cells[row], numeric[at]) for at, cells in enumerate(shown)] for row in range(len(padded))],
        "paper": _table(table.paper) if table.paper else None,
        "folded": table.folded,
    }


def _badge(outcome: str) -> dict[str, str]:
    style, symbol = OUTCOMES.get(outcome, ("unclear", "?"))
    return {"outcome": outcome, "style": style, "symbol": symbol}


def _counts(outcomes: Sequence[str]) -> list[dict[str, Any]]:
    counted = Counter(outcomes)
    order = [*OUTCOMES, *(outcome for outcome in counted if outcome not in OUTCOMES)]
    return [{"count": counted[outcome], **_badge(outcome)} for outcome in order if counted[outcome]]


def _asset(name: str) -> str:
    return (resources.files("lln_lab.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
