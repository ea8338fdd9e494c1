"""lra/listops: nested lists of operators over digits, whose value is the class (Nangia & Bowman 2018, Tay et al. 2020).

A node above the greatest depth is an operator with probability 1/4, with 2 … 10 arguments that are nodes again; else a
digit. MIN, MAX, MED (median, rounded down) and SM (sum modulo 10). Trees outside the range of lengths are drawn again,
as in the release, where the range is 500 … 2,000 tokens.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy
from numpy import ndarray

from lln_lab.data import hub
from lln_lab.data.files import checksums, first_file, locate, places
from lln_lab.data.generated import ids, splits
from lln_lab.data.missing import missing
from lln_lab.data.ragged import Ragged, ragged
from lln_lab.data.task import Selection, TaskData

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
FIRST_OPERATOR, END, VOCABULARY = 11, 15, 16  # 0 is padding, digit n is n + 1
KNOWN, VALUES = bytes(range(1, VOCABULARY)), [str(digit).encode() for digit in range(10)]
OPERATOR_SHARE = 0.25
FOLDERS = ("listops-1000", "listops", "lra_release/listops-1000", "lra_release/lra_release/listops-1000")
ATTEMPTS = 1000


@dataclass(frozen=True)
class ListOps:
    length: int = 256  # at most so many tokens
    shortest: int | None = None  # None: a quarter of it, as in the release
    depth: int = 10
    arguments: int = 10

    name: ClassVar[str] = "lra/listops"

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.length or self.length < 4 or self.depth < 2 or self.arguments < 2:
            raise ValueError(f"no list fits {self}: the shortest has 4 tokens, depth 2 and 2 arguments")

    @property
    def least(self) -> int:
        return self.length // 4 if self.shortest is None else self.shortest

    def embedded(self, seed: int) -> TaskData:
        train, validation = splits(self._row, seed, 96_000, 2_000)
        source = f"embedded (generated as described, {self.least} to {self.length} tokens)"
        return TaskData(self.name, source, train, validation, 10, VOCABULARY)

    def directory(self, folder: Path, cache: Path) -> TaskData:
        """Lists of more than `length` tokens are left out: the value of a list is not in its first tokens."""
        place, paths = locate(folder, FOLDERS, _release)
        if place is None or paths is None:
            layouts = "basic_train.tsv and basic_val.tsv with the columns Source and Target"
            raise missing(self.name, places(folder, FOLDERS), layouts, "lra_release.gz of the Long Range Arena")
        files = checksums(place, paths)
        parts = [
            Ragged(ragged(cache, f"listops-{sha[:32]}", partial(_read, path)), self.length)
            for path, sha in zip(paths, files.values(), strict=True)
        ]
        train, validation = (self._fitting(part, path) for part, path in zip(parts, paths, strict=True))
        left_out = [len(whole) - len(kept) for whole, kept in zip(parts, (train, validation), strict=True)]
        told = "lists of more than {} tokens are left out: {:,} of {:,} to train on, {:,} of {:,} to validate"
        counts = told.format(self.length, left_out[0], len(parts[0]), left_out[1], len(parts[1]))
        source = f"{place} ({counts})" if any(left_out) else str(place)
        return TaskData(self.name, source, train, validation, 10, VOCABULARY, files)

    def hub(self, repository: str | None) -> TaskData:
        raise hub.no_hub(self.name)

    def _fitting(self, lists: Ragged, path: Path) -> Selection:
        lengths = numpy.diff(lists.ends, prepend=0)
        kept = numpy.flatnonzero(lengths <= self.length)
        if not len(kept):
            least = int(lengths.min())
            fits = f"its shortest list has {least} tokens, so that a length of {least} and more fits"
            raise ValueError(f"{path.name} has no list of at most {self.length} tokens: {fits}")
        return Selection(lists, kept.tolist())

    def _row(self, random: numpy.random.Generator) -> dict[str, Any]:
        tokens, value = draw(random, self.least, self.length, self.depth, self.arguments)
        return {"input_ids": ids(tokens), "label": value}


def draw(
    random: numpy.random.Generator, shortest: int, longest: int, depth: int = 10, arguments: int = 10
) -> tuple[ndarray, int]:
    """(tokens, value) of one list."""
    for _ in range(ATTEMPTS):
        trees, lengths = _grow(random, 16, depth, arguments)
        fitting = numpy.flatnonzero((lengths >= shortest) & (lengths <= longest))
        if len(fitting):
            return _write(random, [counts[owner == fitting[0]] for owner, counts in trees])
    raise ValueError(f"found no list of {shortest} to {longest} tokens of depth {depth} with {arguments} arguments")


def _grow(random: numpy.random.Generator, count: int, depth: int, arguments: int) -> tuple[list, ndarray]:
    """`count` trees, level by level, roots that are operators: (tree of each node, its number of arguments), and lengths.

    The children of a level's nodes stand in the next level in the order of their parents.
    """
    owner, lengths, levels = numpy.arange(count), numpy.zeros(count, dtype=numpy.int64), []
    for level in range(1, depth + 1):
        share = 1.0 if level == 1 else OPERATOR_SHARE if level < depth else 0.0
        operator = random.random(len(owner)) < share
        counts = numpy.where(operator, random.integers(2, arguments + 1, len(owner)), 0)
        lengths += numpy.bincount(owner, weights=1 + operator, minlength=count).astype(numpy.int64)
        levels.append((owner, counts))
        owner = numpy.repeat(owner, counts)
    return levels, lengths


def _write(random: numpy.random.Generator, levels: list[ndarray]) -> tuple[ndarray, int]:
    """Operators and digits drawn for every node of one tree: its tokens in reading order, and its value."""
    values, sizes, kinds = [ndarray(0)] * len(levels), [ndarray(0)] * len(levels), [ndarray(0)] * len(levels)
    for level in reversed(range(len(levels))):
        counts = levels[level]
        values[level], sizes[level] = random.integers(0, 10, len(counts)), numpy.ones(len(counts), dtype=numpy.int64)
        kinds[level] = random.integers(0, len(OPERATORS), len(counts))
        if (operator := counts > 0).any():
            starts = _starts(counts[operator])
            sizes[level][operator] = 2 + numpy.add.reduceat(sizes[level + 1], starts)
            values[level][operator] = _evaluate(kinds[level][operator], values[level + 1], starts, counts[operator])
    tokens = numpy.zeros(sizes[0][0], dtype=numpy.uint8)
    position = numpy.zeros(1, dtype=numpy.int64)
    for level, counts in enumerate(levels):
        operator = counts > 0
        tokens[position] = numpy.where(operator, FIRST_OPERATOR + kinds[level], values[level] + 1)
        tokens[(position + sizes[level] - 1)[operator]] = END
        if operator.any():
            before = _starts(sizes[level + 1])  # tokens of the level's nodes to the left
            first = numpy.repeat(before[_starts(counts[operator])], counts[operator])
            position = numpy.repeat(position[operator], counts[operator]) + 1 + before - first
        else:
            break
    return tokens, int(values[0][0])


def _starts(counts: ndarray) -> ndarray:
    return numpy.cumsum(counts) - counts


def _evaluate(kinds: ndarray, arguments: ndarray, starts: ndarray, counts: ndarray) -> ndarray:
    """The values of lists whose arguments stand one list after another."""
    lists = numpy.repeat(numpy.arange(len(counts)), counts)
    ordered = arguments[numpy.lexsort((arguments, lists))]
    median = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) // 2
    least, most = ordered[starts], ordered[starts + counts - 1]
    return numpy.choose(kinds, (least, most, median, numpy.add.reduceat(arguments, starts) % 10))


def _release(folder: Path) -> tuple[Path, Path] | None:
    train, validation = first_file(folder, ("basic_train.tsv",)), first_file(folder, ("basic_val.tsv",))
    return (train, validation) if train and validation else None


def _read(path: Path) -> tuple[list[bytes], list[int]]:
    """The release writes a list as pairs, ( ( ( [MAX 2 ) 3 ) ] ): the round brackets tell nothing and are left out."""
    letters = bytes(range(FIRST_OPERATOR, FIRST_OPERATOR + len(OPERATORS)))
    table = bytes.maketrans(b"0123456789]", bytes([*range(1, 11), END]))
    lists, values = [], []
    with path.open("rb") as file:
        if file.readline().split() != [b"Source", b"Target"]:
            raise ValueError(f"{path.name} must begin with the columns Source and Target")
        for number, line in enumerate(file, 2):
            source, _, value = line.rstrip(b"\r\n").partition(b"\t")
            for operator, letter in zip(OPERATORS, letters, strict=True):
                source = source.replace(operator.encode(), bytes([letter]))
            tokens = source.translate(table, delete=b" ()")
            if not tokens or tokens.translate(None, KNOWN) or value not in VALUES:
                raise ValueError(f"{path.name}, line {number}: expected a list, a tab and a value from 0 to 9")
            lists.append(tokens)
            values.append(int(value))
    if not lists:
        raise ValueError(f"{path.name} has no list below its header")
    return lists, values
