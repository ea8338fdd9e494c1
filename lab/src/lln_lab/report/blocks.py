"""What a page is made of: sections of tables, plots, attention maps and pictures."""

from dataclasses import dataclass, field
from typing import Any

from lln_lab.report.maps import Maps
from lln_lab.report.plots import Plot


@dataclass(frozen=True)
class Table:
    columns: list[str]
    rows: list[list[Any]]
    title: str = ""
    note: str = ""
    paper: "Table | None" = None  # the paper's numbers, shown beside
    folded: bool = False  # shown when asked for


@dataclass(frozen=True)
class Picture:
    uri: str
    alt: str


@dataclass(frozen=True)
class Fact:
    """A name and its value: one text, or several named ones."""

    name: str
    value: "str | list[tuple[str, str]]"
    code: bool = False


@dataclass(frozen=True)
class Verdict:
    claim: str
    outcome: str
    numbers: str


@dataclass(frozen=True)
class Figure:
    """A large figure: its value, what it is, and what it means."""

    value: str
    label: str
    note: str = ""
    colour: int | None = None  # of the palette


@dataclass(frozen=True)
class Headline:
    sentences: list[str]
    figures: list[Figure]


Block = Table | Plot | Maps | Picture


@dataclass
class Section:
    """One result."""

    title: str
    group: str
    name: str
    facts: list[Fact] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    headline: Headline | None = None  # opens the section; its verdicts then follow its plots and attention maps
    limits: list[str] = field(default_factory=list)  # what the result cannot say
