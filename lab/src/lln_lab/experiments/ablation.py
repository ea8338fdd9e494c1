"""Fixed alpha and beta against matching: which runs belong to the comparison."""

from collections.abc import Sequence
from typing import Any


def fixed_or_matched(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs with fixed alpha and beta, and those of the same attention, otherwise alike, that are matched."""
    compared = {_kind(r) for r in results if "alpha" in r["options"]}
    return [r for r in results if _kind(r) in compared]


def _kind(result: dict[str, Any]) -> tuple[str, str]:
    others = {name: x for name, x in result["options"].items() if name not in ("alpha", "beta")}
    return result["attention"], str(sorted(others.items()))
