"""Every task under one name: what is embedded works offline, and what is wrong or missing says so."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lln_lab.data
from lln_lab.data.generated import Generated
from lln_lab.data.task import TaskData

GENERATED = [name for name in lln_lab.data.names() if name.split("/")[0] not in ("glue", "wikitext")]
SMALL = {"lra/text": {"length": 256}, "lra/retrieval": {"length": 256}, "dogs_vs_cats": {"size": 16}}


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    return a == b


def same_row(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)


@pytest.mark.parametrize("task", lln_lab.data.names())
def test_embedded_data_needs_nothing(task: str) -> None:
    data = lln_lab.data.load(task, limit=8, **SMALL.get(task, {}))
    assert data.name == task and data.source.startswith("embedded (")
    assert len(data.train) == 8 and 1 <= len(data.validation) <= 8
    for row in (data.train[0], data.train[7], data.validation[0]):
        label = row.get("label")
        if "labels" in row:
            assert data.classes and 0 <= row["labels"].max() < data.classes
        elif data.classes and data.classes > 1:
            assert isinstance(label, int) and 0 <= label < data.classes
        for key in ("input_ids", "pair_ids"):
            if key in row:
                assert row[key].dtype == torch.int64 and data.vocabulary is not None
                assert row[key].min() >= 1 and row[key].max() < data.vocabulary  # 0 is padding, and nothing is padded
        if "labels" in row:
            assert row["labels"].shape == row["input_ids"].shape
        if "image" in row:
            edge = 32 if task == "cifar10" else 16
            assert row["image"].dtype == torch.uint8 and row["image"].shape == (3, edge, edge)
        if "text" in row:
            assert row["text"].strip()


@pytest.mark.parametrize("task", GENERATED)
def test_a_generated_row_is_a_function_of_seed_split_and_index(task: str) -> None:
    options = SMALL.get(task, {})
    data, again, other = (lln_lab.data.load(task, seed=seed, **options) for seed in (3, 3, 4))
    backwards = {index: again.train[index] for index in (500, 2, 0)}
    assert all(same_row(data.train[index], row) for index, row in backwards.items())
    assert not same_row(data.train[0], data.train[2])
    assert not same_row(data.train[0], data.validation[0])
    assert not same_row(data.train[0], other.train[0])
    assert same_row(pickle.loads(pickle.dumps(data)).train[2], backwards[2])


def test_another_process_makes_the_same_row() -> None:
    row = lln_lab.data.load("lra/text", seed=5).train[77]["input_ids"]
    code = "import lln_lab.data; print(lln_lab.data.load('lra/text', seed=5).train[77]['input_ids'].tolist())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(row.tolist())


def test_iteration_ends_where_the_rows_do() -> None:
    rows = Generated(lambda random: {"n": int(random.integers(100))}, 5, 0, "train")
    listed = list(rows)  # type: ignore[call-overload]
    assert len(listed) == 5 and rows[-1] == listed[4]
    with pytest.raises(IndexError):
        rows[-6]


def test_a_limit_spreads_over_the_rows() -> None:
    whole, part = lln_lab.data.load("glue/sst2"), lln_lab.data.load("glue/sst2", limit=10)
    assert len(part.train) == 10 and len(part.validation) == 10
    assert part.train[5] == whole.train[5 * len(whole.train) // 10]
    with pytest.raises(ValueError, match="at least 1"):
        lln_lab.data.load("glue/sst2", limit=0)


def test_describe_gives_counts_and_checksums() -> None:
    data = TaskData("t", "/there", range(1500), range(20), 2, 257, {"train.tsv": "ab" * 32})  # type: ignore[arg-type]
    lines = "\n".join(lln_lab.data.describe(data))
    for told in ("t: /there", "1,500", "20", "2 classes", "257", "train.tsv", "ab" * 32):
        assert told in lines


@pytest.mark.parametrize(
    ("task", "options", "told"),
    [
        ("glue/nli", {}, "glue/mnli"),
        ("lra/text", {"size": 3}, "its options: length"),
        ("glue/sst2", {"size": 3}, "its options: none"),
        ("recall", {"length": 10, "pairs": 8}, "need a length of 16"),
        ("needle", {"length": 1}, "length of at least 2"),
        ("lra/listops", {"length": 3}, "4 tokens"),
        ("lra/pathfinder", {"dashes": 30}, "the dashes one of 6, 9, 14; got 32 and 30"),
        ("recall", {"seed": -1}, "at least 0"),
    ],
)
def test_wrong_names_and_options_are_refused(task: str, options: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        lln_lab.data.load(task, **options)


@pytest.mark.parametrize("task", [name for name in lln_lab.data.names() if name not in ("recall", "needle")])
def test_missing_data_says_what_fits_and_where_it_looked(task: str, tmp_path: Path) -> None:
    with pytest.raises(lln_lab.data.MissingData, match="looked for") as caught:
        lln_lab.data.load(task, source=tmp_path, cache=tmp_path / "cache")
    for told in (task, str(tmp_path), "layouts that fit", "how to get it"):
        assert told in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(lln_lab.data.MissingData, match="nowhere"):
        lln_lab.data.load(task, source=tmp_path / "nowhere")


@pytest.mark.parametrize("task", ["recall", "needle"])
def test_generated_tasks_take_no_source(task: str, tmp_path: Path) -> None:
    for source in (tmp_path, "hub"):
        with pytest.raises(ValueError, match="takes no source"):
            lln_lab.data.load(task, source=source)
