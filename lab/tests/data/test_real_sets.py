"""The real sets, where LLN_DATA names a directory that holds them: wikitext2, glue, imdb, cifar10, dogs-vs-cats."""

import os
from pathlib import Path

import numpy
import pytest

import lln_lab.data

SETS = {
    "wikitext": (600, 60, None),
    "glue/sst2": (67_349, 872, 2),
    "glue/qnli": (9_999, 5_463, 2),
    "lra/text": (25_000, 25_000, 2),
    "lra/image": (50_000, 10_000, 10),
    "cifar10": (50_000, 10_000, 10),
    "dogs_vs_cats": (6_000, 2_000, 2),
}


@pytest.fixture(scope="module")
def root() -> Path:
    if "LLN_DATA" not in os.environ:
        pytest.skip("LLN_DATA is not set: the real sets are not tested")
    return Path(os.environ["LLN_DATA"])


@pytest.mark.parametrize("task", SETS)
def test_counts_classes_and_balance(task: str, root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = os.environ.get("LLN_CACHE") or tmp_path_factory.getbasetemp() / "cache"
    data = lln_lab.data.load(task, source=root, cache=cache)
    train, validation, classes = SETS[task]
    assert (len(data.train), len(data.validation), data.classes) == (train, validation, classes)
    assert len(data.files) == 2 and all(len(checksum) == 64 for checksum in data.files.values())
    if classes is None:
        assert all(row["text"].startswith("= ") for row in data.train)  # type: ignore[attr-defined]
        assert sum(len(row["text"].split()) for row in data.train) > 2_000_000  # type: ignore[attr-defined]
        return
    sample = lln_lab.data.load(task, source=root, cache=cache, limit=500)
    counts = numpy.bincount([sample.train[index]["label"] for index in range(500)], minlength=classes)
    assert counts.min() > 0.8 * 500 / classes
