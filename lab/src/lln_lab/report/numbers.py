"""Numbers as people read them: four significant digits, and the same number of decimals down a column."""

import math
import re
from collections.abc import Sequence
from typing import Any

MISSING = "–"
DIGITS = 4


def number(value: float) -> str:
    """A number on its own: 12,345 or 0.1235 or 1.235e-07."""
    if isinstance(value, int):
        return f"{value:,}"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        decimals = 0 if value == 0 else max(0, DIGITS - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{decimals}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{DIGITS - 1}e}"


def text(value: Any) -> str:
    """Any value of a result as text. Null is nothing, or what strict JSON has in place of NaN: a loss that diverged."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(text, value)) or MISSING
    if isinstance(value, dict):
        return ", ".join(f"{key} {text(item)}" for key, item in value.items()) or MISSING
    return str(value)


def column(values: Sequence[Any]) -> list[str]:
    """A table's column, with equal decimals where its numbers are of a comparable size, so that points line up."""
    floats = [abs(v) for v in values if isinstance(v, float) and math.isfinite(v) and v != 0]
    if not floats or min(floats) < 1e-3 or max(floats) >= 1e6:
        return [text(v) for v in values]
    decimals = max(0, min(DIGITS, DIGITS - 1 - math.floor(math.log10(min(floats)))))
    while decimals and all(f"{v:.{decimals}f}".endswith("0") for v in floats):
        decimals -= 1
    return [f"{v:,.{decimals}f}" if isinstance(v, float) and math.isfinite(v) else text(v) for v in values]


def is_numeric(shown: str) -> bool:
    """Whether a cell lines up to the right: numbers, with a spread or a unit behind them, and what is missing."""
    return shown in (MISSING, "NaN", "∞", "−∞") or re.match(r"[+−-]?\.?\d", shown) is not None


def words(key: str) -> str:
    """A key as words: "seconds_per_step" is "seconds per step"."""
    return key.replace("_", " ")


def natural(key: str) -> list[tuple[int, str]]:
    """Sorts "layer 2" before "layer 10"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", key) if part]
