"""CIFAR-10 in grey and in colours, from tars or from the pickles of its python version, read without running code."""

import os
import pickle
from pathlib import Path

import numpy
import pytest
from PIL import Image

import lln_lab.data
from lln_lab.data.cifar_pickle import read_batch


def batch(seed: int, count: int = 4) -> dict[bytes, object]:
    pixels = numpy.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=numpy.uint8)
    return {b"data": pixels, b"labels": [(seed + n) % 10 for n in range(count)], b"batch_label": b"x"}


def test_the_python_version(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for seed, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        (folder / name).write_bytes(pickle.dumps(batch(seed), protocol=3))
    data = lln_lab.data.load("lra/image", source=tmp_path, cache=tmp_path / "cache")
    assert len(data.train) == 20 and len(data.validation) == 4 and len(data.files) == 6
    pixels = numpy.asarray(batch(1)[b"data"])[2].reshape(3, 32, 32).transpose(1, 2, 0)
    grey = numpy.asarray(Image.fromarray(pixels).convert("L"), dtype=numpy.int64)
    assert (data.train[6]["input_ids"].numpy() == grey.reshape(-1) + 1).all()
    assert data.train[6]["label"] == 3 and data.validation[0]["label"] == 5
    colours = lln_lab.data.load("cifar10", source=tmp_path, cache=tmp_path / "cache")
    assert (colours.train[6]["image"].numpy() == pixels.transpose(2, 0, 1)).all() and colours.train[6]["label"] == 3
    assert colours.files == data.files and (data.train[6]["input_ids"].numpy() == grey.reshape(-1) + 1).all()


def test_a_pickle_of_python_2_is_read(tmp_path: Path) -> None:
    """Protocol 2 with the old name of numpy's constructor and byte strings, as CIFAR's files are."""
    written = pickle.dumps(numpy.arange(6, dtype=numpy.uint8).reshape(2, 3), protocol=2)
    written = written.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"_codecs" in written  # what Python 3 adds and Python 2 did not: bytes as an encoded text
    old = (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x06\x00\x01\x02\x03\x04\x05tbU\x06labels](K\x07K\x08eu."
    )
    (tmp_path / "batch").write_bytes(old)
    pixels, labels = read_batch(tmp_path / "batch")
    assert pixels.tolist() == [[0, 1, 2], [3, 4, 5]] and labels.tolist() == [7, 8]


class Evil:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("ran",)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "batch").write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(pickle.UnpicklingError, match="mkdir") as caught:
        read_batch(tmp_path / "batch")
    assert isinstance(caught.value, ValueError)  # which the commands tell in words
    assert not (tmp_path / "ran").exists()


def test_picture_folders(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number, name in enumerate(("airplane", "truck")):
            (tmp_path / "cifar10" / split / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), (100 * number,) * 3).save(tmp_path / "cifar10" / split / name / "0000.png")
    data = lln_lab.data.load("lra/image", source=tmp_path, cache=tmp_path / "cache")
    assert (data.train[1]["input_ids"] == 101).all() and data.train[1]["label"] == 1
    assert data.train[0]["input_ids"].shape == (1024,)
    colours = lln_lab.data.load("cifar10", source=tmp_path, cache=tmp_path / "cache")
    assert (colours.train[1]["image"] == 100).all() and colours.train[1]["image"].shape == (3, 32, 32)
    assert colours.classes == 10 and colours.validation[1]["label"] == 1


def test_more_classes_than_cifar_has_are_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number in range(11):
            (tmp_path / split / f"{number:02}").mkdir(parents=True)
            Image.new("L", (32, 32), number).save(tmp_path / split / f"{number:02}" / "0.png")
    with pytest.raises(ValueError, match="11 classes; lra/image has 10"):
        lln_lab.data.load("lra/image", source=tmp_path, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (pickle.dumps({b"labels": [1]}), "labels, but no data"),
        (pickle.dumps({b"data": [[1]], b"fine_labels": [1]}), "data, fine_labels, but no labels"),
        (pickle.dumps([1, 2]), "no fields, but no data and no labels"),
        (pickle.dumps({b"data": [[1, 2]], b"labels": [1, 2]}), "1 pictures and 2 labels"),
        (pickle.dumps({b"data": [[1, 2]], b"labels": [1]}), r"shape \(2,\)"),
        (pickle.dumps({b"data": [[1] * 3072], b"labels": [99]}), "labels up to 99"),
        (pickle.dumps(batch(0), protocol=3)[:500], "truncated"),
        (b"", "truncated"),
    ],
    ids=["no data", "other labels", "a list", "a label too many", "other shape", "other classes", "half", "empty"],
)
def test_a_file_that_is_no_batch_is_refused_by_name(tmp_path: Path, content: bytes, told: str) -> None:
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (tmp_path / name).write_bytes(pickle.dumps(batch(0), protocol=3))
    (tmp_path / "data_batch_3").write_bytes(content)
    with pytest.raises(ValueError, match=f"data_batch_3 .*{told}"):
        lln_lab.data.load("lra/image", source=tmp_path, cache=tmp_path / "cache")
