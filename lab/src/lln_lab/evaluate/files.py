"""Files of a task: JSON lines (.xz is unpacked), one example a line, with the fields that the task names."""

import json
import lzma
import random
from pathlib import Path
from typing import Any


def examples(path: Path, fields: tuple[str, ...], count: int, seed: int) -> list[dict[str, Any]]:
    """Up to `count` random examples, each with those fields; 0 takes all. What is missing is said with its line."""
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    found = [_example(path, number, line, fields) for number, line in numbered]
    if len(found) < 4:
        raise ValueError(f"{path} has {len(found)} examples: a figure needs at least 4")
    return random.Random(seed).sample(found, count) if 0 < count < len(found) else found


def _example(path: Path, number: int, line: str, fields: tuple[str, ...]) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except json.JSONDecodeError as reason:
        raise ValueError(f"{path}, line {number} is not JSON: {reason}") from None
    missing = [name for name in fields if not isinstance(given, dict) or name not in given]
    if missing:
        raise ValueError(f"{path}, line {number} has no field {missing[0]!r}; this task needs {', '.join(fields)}")
    return {name: given[name] for name in fields}
