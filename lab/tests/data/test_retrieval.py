"""lra/retrieval: the release's pairs of texts, and generated ones that share a topic or do not."""

from pathlib import Path

import pytest
import torch

import lln_lab.data
from lln_lab.data.long_texts import RARE


def decode(tokens: torch.Tensor) -> str:
    return bytes((tokens - 1).tolist()).decode()


def test_the_release(tmp_path: Path) -> None:
    lines = b'1.0\tP05-1\tP06-2\tfirst text "\tsecond\n0.0\tA\tB\t\xc3\xa9t\xc3\xa9\tno\r\n1\tA\tB\tlast\tone'
    for part in ("train", "eval"):
        (tmp_path / f"new_aan_pairs.{part}.tsv").write_bytes(lines)
    data = lln_lab.data.load("lra/retrieval", source=tmp_path, cache=tmp_path / "cache", length=10)
    found = [(decode(row["input_ids"]), decode(row["pair_ids"]), row["label"]) for row in data.train]  # type: ignore[attr-defined]
    assert found == [("first text", "second", 1), ("été", "no", 0), ("last", "one", 1)]
    assert list(data.files) == ["new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv"]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (b"", "is empty"),
        (b"1\tA\tB\tt\tu\n1\tA\tB\tt\n", "line 2: .* 4 columns"),
        (b"x\tA\tB\tt\tu\n", "line 1: a label"),
    ],
)
def test_lines_that_are_no_pairs_are_refused_by_name(tmp_path: Path, lines: bytes, told: str) -> None:
    (tmp_path / "new_aan_pairs.train.tsv").write_bytes(b"1\tA\tB\tt\tu\n")
    (tmp_path / "new_aan_pairs.eval.tsv").write_bytes(lines)
    with pytest.raises(ValueError, match=rf"new_aan_pairs\.eval\.tsv.* {told}"):
        lln_lab.data.load("lra/retrieval", source=tmp_path, cache=tmp_path / "cache")


def topics(text: str) -> set[int]:
    words = set(text.split()[:-1])  # the last one may be cut
    return {topic for topic, own in enumerate(RARE.tolist()) if words & set(own)}


def test_generated_pairs_share_their_topic_or_do_not() -> None:
    rows = lln_lab.data.load("lra/retrieval", length=1024).train
    for index in range(60):
        row = rows[index]
        first, second = (topics(decode(row[key])) for key in ("input_ids", "pair_ids"))
        assert len(first) == len(second) == 1
        assert (first == second) == row["label"]
        assert 400 <= len(row["input_ids"]) <= 1024
    assert len({word for own in RARE.tolist() for word in own}) == RARE.size  # no word has two topics
