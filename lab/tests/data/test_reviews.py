"""lra/text: reviews in bytes, from every layout, and generated ones whose label is the majority of their opinions."""

import gzip
import json
import lzma
from pathlib import Path

import pytest
import torch

import lln_lab.data
from lln_lab.data.glue_stand_in import NEGATIONS, POSITIVE

TEXTS = (("Gut – aber kurz.", 1), ("Nein.", 0), ("x" * 50, 1))


def decode(tokens: torch.Tensor) -> str:
    return bytes((tokens - 1).tolist()).decode(errors="ignore")


def jsonl() -> bytes:
    return "".join(json.dumps({"id": str(n), "label": y, "text": t}) + "\n" for n, (t, y) in enumerate(TEXTS)).encode()


@pytest.mark.parametrize(("ending", "pack"), [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress)])
def test_jsonl(tmp_path: Path, ending: str, pack) -> None:  # type: ignore[no-untyped-def]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl{ending}").write_bytes(pack(jsonl()))
    data = lln_lab.data.load("lra/text", source=tmp_path, cache=tmp_path / "cache", length=20)
    rows = list(data.train)  # type: ignore[call-overload]
    assert [(decode(row["input_ids"]), row["label"]) for row in rows] == [(text[:20], label) for text, label in TEXTS]
    assert decode(data.validation[-1]["input_ids"]) == "x" * 20
    longer = lln_lab.data.load("lra/text", source=tmp_path, cache=tmp_path / "cache", length=45)
    assert decode(longer.train[2]["input_ids"]) == "x" * 45  # the cache holds whole reviews


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            '{"text": "a", "label": 1}\n{"review": "b", "label": 0}',
            "train.jsonl, line 2 has review, label, but no text",
        ),
        ('{"text": "a"}', "line 1 has text, but no label"),
        ('["a", 1]', "line 1 has no fields, but no text and no label"),
        ('{"text": "a", "lab', "line 1 is not JSON"),
        ('{"text": 3, "label": 1}', "text must be a string"),
        ('{"text": "a", "label": "good"}', "label 0 or 1; got str and 'good'"),
        ("", "no reviews found in .*train.jsonl"),
    ],
)
def test_rows_that_are_no_reviews_are_refused_by_name(tmp_path: Path, lines: str, told: str) -> None:
    (tmp_path / "train.jsonl").write_text(lines)
    (tmp_path / "test.jsonl").write_bytes(jsonl())
    with pytest.raises(ValueError, match=told):
        lln_lab.data.load("lra/text", source=tmp_path, cache=tmp_path / "cache")


@pytest.mark.parametrize(("ending", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress)])
def test_a_packed_file_that_is_cut_short_is_refused(tmp_path: Path, ending: str, pack) -> None:  # type: ignore[no-untyped-def]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl{ending}").write_bytes(pack(jsonl())[:-20])
    with pytest.raises(ValueError, match=rf"train\.jsonl{ending} is truncated"):
        lln_lab.data.load("lra/text", source=tmp_path, cache=tmp_path / "cache")


def test_text_that_is_not_utf_8_is_refused_by_name(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_bytes('{"text": "schön", "label": 1}'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"train\.jsonl is not UTF-8 \(the byte 0xf6"):
        lln_lab.data.load("lra/text", source=tmp_path, cache=tmp_path / "cache")


def test_folders_without_reviews_are_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for kind in ("neg", "pos"):
            (tmp_path / split / kind).mkdir(parents=True)
    with pytest.raises(ValueError, match="no reviews found in .*neg"):
        lln_lab.data.load("lra/text", source=tmp_path, cache=tmp_path / "cache")


def test_acl_folders(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for kind, text in (("neg", "schlecht"), ("pos", "gut"), ("unsup", "egal")):
            place = tmp_path / "aclImdb" / split / kind
            place.mkdir(parents=True)
            (place / "0_1.txt").write_text(text)
    data = lln_lab.data.load("lra/text", source=tmp_path, cache=tmp_path / "cache")
    assert [(decode(row["input_ids"]), row["label"]) for row in data.train] == [("schlecht", 0), ("gut", 1)]  # type: ignore[attr-defined]
    assert set(data.files) == {f"{split}/{kind}" for split in ("train", "test") for kind in ("neg", "pos")}


@pytest.mark.parametrize("length", [128, 1024, 4096])
def test_generated_reviews_follow_the_majority(length: int) -> None:
    rows = lln_lab.data.load("lra/text", length=length).train
    mixed = 0
    for index in range(60):
        row = rows[index]
        text = decode(row["input_ids"])
        assert length // 4 <= len(text) <= length and (text.endswith(" .") or length == 128)
        opinions = [s for s in text.split(" . ") if s.startswith(("the ", "a "))]
        verdicts = [
            any(word in opinion.split() for word in POSITIVE) != any(f" {n} " in opinion for n in NEGATIONS)
            for opinion in opinions
        ]
        assert (sum(verdicts) * 2 > len(verdicts)) == row["label"]
        mixed += len(set(verdicts)) == 2
    assert length == 128 or mixed > 30
