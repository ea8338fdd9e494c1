"""Finding results: every JSON file with provenance, in folders and below; other JSON is named in a notice.

The result of a single run is part of its experiment's result in a folder above, and stands alone only while that is missing.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lln_lab.report.numbers import natural

# What training and Hugging Face leave beside results: known, so no notice is given.
NOT_RESULTS = {
    "adapter_config.json", "added_tokens.json", "config.json", "generation_config.json", "merges.json",
    "preprocessor_config.json", "settings.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
    "trainer_state.json", "vocab.json",
}  # fmt: skip

MAPS = ".maps.json"  # attention maps of a result, in a file of their own because of their size


@dataclass(frozen=True)
class Result:
    """A result as it was written, and the picture beside it."""

    name: str  # the path a reader knows it by: below the folder that was asked for, and longer where others have it too
    path: Path
    data: dict[str, Any]
    picture: Path | None = None


@dataclass
class Collection:
    results: list[Result] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def collect(paths: Iterable[str | Path]) -> Collection:
    """All results in `paths`, each file once, in the order given and then by name."""
    found = Collection()
    for file, name in _named(paths):
        _take(file, name, found)
    finished = {result.path.resolve().parent for result in found.results if "runs" in result.data}
    found.results = [
        result
        for result in found.results
        if not (is_single_run(result.data) and finished.intersection(result.path.resolve().parents))
    ]
    return found


def is_single_run(data: dict[str, Any]) -> bool:
    return "history" in data and "runs" not in data


def _named(paths: Iterable[str | Path]) -> list[tuple[Path, str]]:
    """Every file once, with its path below what was asked for, which parent folders lengthen until no other has it."""
    files: dict[Path, tuple[Path, int]] = {}  # and the number of parts that its name has
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
        for file in _files(path):
            below = len(file.relative_to(path).parts) if path.is_dir() else 1
            files.setdefault(file.resolve(), (file, below))
    whole = [file.absolute().parts for file, _ in files.values()]
    lengths = [length for _, length in files.values()]
    while True:
        names = [str(Path(*parts[-length:])) for parts, length in zip(whole, lengths, strict=True)]
        shared = {name for name, count in Counter(names).items() if count > 1}
        if not shared:
            return [(file, name) for (file, _), name in zip(files.values(), names, strict=True)]
        lengths = [length + (name in shared) for length, name in zip(lengths, names, strict=True)]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*.json"), key=lambda file: natural(str(file))):
        folders = file.relative_to(path).parts[:-1]
        hidden = any(folder.startswith((".", "checkpoint-")) for folder in folders)
        if file.is_file() and not hidden and file.name not in NOT_RESULTS and not file.name.endswith(MAPS):
            yield file


def _take(file: Path, name: str, found: Collection) -> None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as reason:
        found.notices.append(f"{name} was left out: it is not JSON ({reason})")
        return
    if not isinstance(data, dict) or not isinstance(data.get("provenance"), dict):
        found.notices.append(f"{name} was left out: it has no provenance, so it is not a result")
        return
    maps = file.with_suffix(MAPS)
    if data.get("maps_beside") == maps.name and maps.is_file():
        data["maps"] = json.loads(maps.read_text(encoding="utf-8"))["maps"]
    picture = file.with_suffix(".png")
    found.results.append(Result(name, file, data, picture if picture.is_file() else None))
