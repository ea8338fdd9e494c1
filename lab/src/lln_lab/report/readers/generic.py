"""Any other result: its plain values, and a table of whatever comes in rows."""

from typing import Any

from lln_lab.report.blocks import Block, Table
from lln_lab.report.numbers import words
from lln_lab.report.readers.reader import OTHER, Reader

COMMON = {"provenance", "verdicts", "data", "settings", "preset"}  # shown by every section


def knows(data: dict[str, Any]) -> bool:
    return True


def title(data: dict[str, Any]) -> str | None:
    return str(data["title"]) if data.get("title") else None


def values(data: dict[str, Any]) -> list[Block]:
    plain = [[words(key), value] for key, value in _own(data).items() if _is_plain(value)]
    return [Table(["", "value"], plain, "Values")] if plain else []


def tables(data: dict[str, Any]) -> list[Block]:
    return [flat_table(value, words(key).capitalize()) for key, value in _own(data).items() if not _is_plain(value)]


READER = Reader(OTHER, knows, title, (values, tables))


def flat_table(entries: Any, title: str, first: str = "") -> Table:
    """Rows of a list of dicts, or of a dict of dicts with its keys in front, or one row for each plain value."""
    if isinstance(entries, list):
        rows = [_flat(entry) if isinstance(entry, dict) else {"value": entry} for entry in entries]
    elif any(isinstance(entry, dict) for entry in entries.values()):
        rows = [{first: key} | (_flat(e) if isinstance(e, dict) else {"value": e}) for key, e in entries.items()]
    else:
        rows = [{first: words(key), "value": entry} for key, entry in entries.items()]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return Table(columns, [[row.get(key) for key in columns] for row in rows], title)


def _own(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in COMMON and value not in (None, [], {})}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return not any(isinstance(entry, (dict, list)) for entry in value)
    return not isinstance(value, dict)


def _flat(entry: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, their keys joined: {"a": {"b": 1}} is {"a: b": 1}."""
    found: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{words(key)}: ")
        else:
            found[prefix + words(key)] = value
    return found
