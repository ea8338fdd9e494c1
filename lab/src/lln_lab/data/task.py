"""What a loader gives: rows of training and of validation, where they came from, and the checksums of the files read."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class Rows(Protocol):
    """Random access to rows that are dicts: a `datasets.Dataset`, or a small sequence of our own."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> dict[str, Any]: ...


@dataclass(frozen=True)
class TaskData:
    """Two splits of a task. Token id 0 is padding wherever rows hold ids; rows are neither padded nor shuffled."""

    name: str
    source: str  # "embedded (what it is)", the directory, or "hub:NAME"
    train: Rows
    validation: Rows
    classes: int | None = None  # None: there are no labels; 1: the label is a number
    vocabulary: int | None = None  # ids are below it; None: rows hold text or pictures
    files: dict[str, str] = field(default_factory=dict)  # path relative to the source -> sha256


class Task(Protocol):
    """A task is a frozen dataclass whose fields are its options."""

    def embedded(self, seed: int) -> TaskData:
        """The default that every machine has."""

    def directory(self, folder: Path, cache: Path) -> TaskData:
        """The set as the user keeps it, in one of the common layouts."""

    def hub(self, repository: str | None) -> TaskData:
        """The set from the Hugging Face hub; None is the usual repository."""


def describe(data: TaskData) -> list[str]:
    """Lines for printing: the source, the number of rows and the checksum of every file."""
    kind = {None: "", 1: ", a number to predict"}.get(data.classes, f", {data.classes} classes")
    ids = f", ids below {data.vocabulary}" if data.vocabulary else ""
    counts = f"{len(data.train):,} rows to train on, {len(data.validation):,} to validate{kind}{ids}"
    return [f"{data.name}: {data.source}", counts, *(f"sha256 {sha}  {path}" for path, sha in data.files.items())]


class Selection:
    """Some of the rows of another sequence."""

    def __init__(self, rows: Rows, chosen: list[int]) -> None:
        self.rows, self.chosen = rows, chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[self.chosen[index]]


def not_empty(data: TaskData) -> TaskData:
    """Raises ValueError when a split has no rows, which would be noticed at the first step or after the last one."""
    for rows, purpose in ((data.train, "train on"), (data.validation, "validate")):
        if not len(rows):
            files = f" ({', '.join(data.files)})" if data.files else ""
            raise ValueError(f"{data.name} has no rows to {purpose} in {data.source}{files}")
    return data


def at_most(data: TaskData, limit: int | None) -> TaskData:
    """`limit` rows of either split, evenly spread: files are often sorted by class, where the first rows are of one only."""
    if limit is None:
        return data
    if limit < 1:
        raise ValueError(f"limit must be at least 1 row; got {limit}")
    return dataclasses.replace(data, train=spread(data.train, limit), validation=spread(data.validation, limit))


def spread(rows: Rows, limit: int) -> Rows:
    """At most `limit` rows, evenly spread."""
    if len(rows) <= limit:
        return rows
    chosen = [index * len(rows) // limit for index in range(limit)]
    select = getattr(rows, "select", None)  # a datasets.Dataset stays one
    return select(chosen) if select else Selection(rows, chosen)
