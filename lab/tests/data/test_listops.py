"""Lists are well formed, their class is their value, and the release's files mean the same."""

import statistics
from pathlib import Path

import numpy
import pytest

import lln_lab.data
from lln_lab.data import listops

NAMES = {**{n + 1: str(n) for n in range(10)}, 11: "MIN", 12: "MAX", 13: "MED", 14: "SM", 15: "]"}


def evaluate(tokens: list[str]) -> tuple[int, int]:
    """(value, depth), by recursive descent, with Python's own min, max, median and sum."""

    def read(at: int) -> tuple[int, int, int]:
        if tokens[at].isdigit():
            return int(tokens[at]), at + 1, 1
        name, values, depths = tokens[at], [], []
        at += 1
        while tokens[at] != "]":
            value, at, depth = read(at)
            values.append(value)
            depths.append(depth)
        assert 2 <= len(values) <= 10
        value = {"MIN": min, "MAX": max, "MED": lambda v: int(statistics.median(v)), "SM": lambda v: sum(v) % 10}[name](
            values
        )
        return value, at + 1, max(depths) + 1

    value, end, depth = read(0)
    assert end == len(tokens)
    return value, depth


@pytest.mark.parametrize(("shortest", "longest"), [(500, 2000), (64, 256), (4, 12), (100, 104)])
def test_the_class_is_the_value(shortest: int, longest: int) -> None:
    deepest, seen = 0, set()
    for index in range(60):
        tokens, value = listops.draw(numpy.random.default_rng((1, index)), shortest, longest)
        assert shortest <= len(tokens) <= longest
        found, depth = evaluate([NAMES[token] for token in tokens.tolist()])
        assert found == value and depth <= 10
        deepest, seen = max(deepest, depth), seen | set(tokens.tolist())
    assert longest < 500 or deepest == 10
    assert seen == set(range(1, 16))


def test_every_class_occurs() -> None:
    rows = lln_lab.data.load("lra/listops").train
    assert {rows[index]["label"] for index in range(300)} == set(range(10))


def test_operators_take_a_quarter_of_the_places() -> None:
    """The release's distribution: below the root and above the greatest depth, a node is an operator with 1/4."""
    levels, lengths = listops._grow(numpy.random.default_rng(0), 4000, 10, 10)
    counts = levels[2][1]
    assert abs((counts > 0).mean() - 0.25) < 0.01
    assert set(counts.tolist()) == {0, *range(2, 11)}
    assert (levels[9][1] == 0).all() and len(lengths) == 4000


def test_an_impossible_length_is_refused() -> None:
    with pytest.raises(ValueError, match="found no list"):
        listops.draw(numpy.random.default_rng(0), 500, 600, depth=2)


def test_the_release(tmp_path: Path) -> None:
    folder = tmp_path / "lra_release" / "listops-1000"
    folder.mkdir(parents=True)
    text = "Source\tTarget\n( ( ( [MAX 2 ) ( ( ( [SM 7 ) 8 ) ] ) ) ] )\t5\n( ( ( ( [MED 2 ) 9 ) 4 ) ] )\t4\r\n"
    for name in ("basic_train.tsv", "basic_val.tsv"):
        (folder / name).write_text(text, newline="")
    data = lln_lab.data.load("lra/listops", source=tmp_path, cache=tmp_path / "cache", length=7)
    names = [[NAMES[token] for token in row["input_ids"].tolist()] for row in data.train]  # type: ignore[attr-defined]
    assert names[1] == ["MED", "2", "9", "4", "]"] and data.train[1]["label"] == 4
    assert names[0] == ["MAX", "2", "SM", "7", "8", "]", "]"] and data.train[0]["label"] == 5
    assert evaluate(names[0]) == (5, 3) and evaluate(names[1]) == (4, 2)
    assert data.source == str(folder)


def released(folder: Path, train: list[str], validation: list[str]) -> Path:
    """The two files of the release, of lines without their header."""
    for name, lines in (("basic_train.tsv", train), ("basic_val.tsv", validation)):
        (folder / name).write_text("\n".join(["Source\tTarget", *lines]) + "\n")
    return folder


LONG, SHORT = "( ( ( [MAX 2 ) ( ( ( [SM 7 ) 8 ) ] ) ) ] )\t5", "( ( ( ( [MED 2 ) 9 ) 4 ) ] )\t4"  # 7 and 5 tokens


def test_lists_that_are_too_long_are_left_out_and_never_cut(tmp_path: Path) -> None:
    released(tmp_path, [LONG, SHORT, LONG, SHORT, SHORT], [SHORT, LONG])
    data = lln_lab.data.load("lra/listops", source=tmp_path, cache=tmp_path / "cache", length=6)
    assert len(data.train) == 3 and len(data.validation) == 1
    for row in [*data.train, *data.validation]:  # type: ignore[misc]
        value, _ = evaluate([NAMES[token] for token in row["input_ids"].tolist()])
        assert value == row["label"] == 4
    for told in ("more than 6 tokens", "2 of 5 to train on", "1 of 2 to validate"):
        assert told in data.source
    assert Path(data.source.split(" (")[0]) == tmp_path


def test_a_release_of_longer_lists_only_is_refused(tmp_path: Path) -> None:
    released(tmp_path, [LONG, SHORT], [LONG])
    with pytest.raises(ValueError, match=r"basic_val\.tsv has no list of at most 6 .* shortest list has 7 tokens"):
        lln_lab.data.load("lra/listops", source=tmp_path, cache=tmp_path / "cache", length=6)


@pytest.mark.parametrize("line", ["[MAX 2 3 ]", "[MAX 2 3 ]\tthree", "[MUL 2 3 ]\t6", "\t4"])
def test_a_line_that_is_no_list_is_named(tmp_path: Path, line: str) -> None:
    released(tmp_path, [SHORT, line], [SHORT])
    with pytest.raises(ValueError, match=r"basic_train\.tsv, line 3"):
        lln_lab.data.load("lra/listops", source=tmp_path, cache=tmp_path / "cache")


def test_a_file_without_lists_is_refused(tmp_path: Path) -> None:
    released(tmp_path, [SHORT], [])
    with pytest.raises(ValueError, match=r"basic_val\.tsv has no list"):
        lln_lab.data.load("lra/listops", source=tmp_path, cache=tmp_path / "cache")
