"""Tars and folders give the same pictures; the cache is used, and decoded pixels are what Pillow shows."""

import io
import tarfile
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

import lln_lab.data
from lln_lab.data import pictures


def picture(seed: int, width: int = 40, height: int = 40) -> Image.Image:
    return Image.fromarray(numpy.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=numpy.uint8))


def fill(folder: Path, split: str, width: int = 40, height: int = 40) -> None:
    for number, name in enumerate(("cat", "cat", "dog")):
        place = folder / split / name
        place.mkdir(parents=True, exist_ok=True)
        picture(number + len(split), width, height).save(place / f"{number:05}.png")


def tar(folder: Path, split: str, to: Path, mode: str) -> None:
    with tarfile.open(to, mode) as archive:  # type: ignore[call-overload]
        archive.add(folder / split, arcname=split)


@pytest.mark.parametrize("ending", ["tar", "tar.xz"])
def test_tars_and_folders_hold_the_same(tmp_path: Path, ending: str) -> None:
    for split in ("train", "test"):
        fill(tmp_path / "folders", split)
        (tmp_path / "tars").mkdir(exist_ok=True)
        tar(tmp_path / "folders", split, tmp_path / "tars" / f"{split}.{ending}", "w:xz" if "xz" in ending else "w")
    cache = tmp_path / "cache"
    of_folders = lln_lab.data.load("dogs_vs_cats", source=tmp_path / "folders", cache=cache, size=40)
    of_tars = lln_lab.data.load("dogs_vs_cats", source=tmp_path / "tars", cache=cache, size=40)
    assert list(of_folders.files) == ["train", "test"] and list(of_tars.files) == [f"train.{ending}", f"test.{ending}"]
    assert sorted(row["label"] for row in of_tars.train) == [0, 0, 1] and of_tars.classes == 2  # type: ignore[attr-defined]
    key = {tuple(row["image"].flatten().tolist()): row["label"] for row in of_tars.train}  # type: ignore[attr-defined]
    for row in of_folders.train:  # type: ignore[attr-defined]
        assert key[tuple(row["image"].flatten().tolist())] == row["label"]
    expected = torch.from_numpy(numpy.array(picture(0 + len("train")))).permute(2, 0, 1)
    assert torch.equal(of_folders.train[0]["image"], expected)


def test_pictures_are_cropped_in_the_centre_not_squeezed(tmp_path: Path) -> None:
    wide = Image.new("RGB", (300, 100), (255, 0, 0))
    wide.paste((0, 0, 255), (100, 0, 200, 100))
    buffer = io.BytesIO()
    wide.save(buffer, "PNG")
    pixels = pictures.to_pixels(buffer.getvalue(), 20, "RGB")
    assert pixels.shape == (3, 20, 20) and (pixels[2] > 200).mean() > 0.9


def test_a_second_load_reads_the_cache_and_not_the_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("train", "test"):
        fill(tmp_path, split)
    first = lln_lab.data.load("dogs_vs_cats", source=tmp_path, cache=tmp_path / "cache", size=16)
    assert not list((tmp_path / "train").rglob("*.npy"))
    monkeypatch.setattr(pictures, "decode", lambda *_: pytest.fail("decoded again"))
    again = lln_lab.data.load("dogs_vs_cats", source=tmp_path, cache=tmp_path / "cache", size=16)
    assert torch.equal(first.train[2]["image"], again.train[2]["image"])
    monkeypatch.undo()
    picture(99).save(tmp_path / "train" / "dog" / "00002.png")
    changed = lln_lab.data.load("dogs_vs_cats", source=tmp_path, cache=tmp_path / "cache", size=16)
    assert not torch.equal(changed.train[2]["image"], first.train[2]["image"])
    assert changed.files["train"] != first.files["train"] and changed.files["test"] == first.files["test"]


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("train", "test"):
        fill(tmp_path, split)
    monkeypatch.setenv("LLN_CACHE", str(tmp_path / "elsewhere"))
    lln_lab.data.load("dogs_vs_cats", source=tmp_path, size=16)
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2


def test_splits_with_other_classes_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, "train")
    fill(tmp_path, "test")
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "frog")
    with pytest.raises(ValueError, match="frog"):
        lln_lab.data.load("dogs_vs_cats", source=tmp_path, cache=tmp_path / "cache")


BLOCK = 512


def archives(folder: Path, ending: str, mode: str) -> Path:
    """train and test as tars; returns the training one."""
    for split in ("train", "test"):
        fill(folder / "folders", split)
        tar(folder / "folders", split, folder / f"{split}.{ending}", mode)
    return folder / f"train.{ending}"


def members_end(path: Path) -> list[int]:
    """Where the blocks of each member end in a plain tar."""
    with tarfile.open(path) as archive:
        return [one.offset_data + -(-one.size // BLOCK) * BLOCK for one in archive]


def refused_as_cut(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.tar.* is truncated"):
        lln_lab.data.load("dogs_vs_cats", source=folder, cache=folder / "cache", size=8)
    assert not list((folder / "cache").iterdir())


@pytest.mark.parametrize("beyond", [0, 100, BLOCK, BLOCK + 100], ids=["between", "header", "after header", "content"])
def test_a_plain_tar_that_is_cut_short_is_refused(tmp_path: Path, beyond: int) -> None:
    path = archives(tmp_path, "tar", "w")
    second_picture = members_end(path)[2]
    path.write_bytes(path.read_bytes()[: second_picture + beyond])
    refused_as_cut(tmp_path)


@pytest.mark.parametrize(("ending", "mode"), [("tar.gz", "w:gz"), ("tar.xz", "w:xz"), ("tar.bz2", "w:bz2")])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9])
def test_a_compressed_tar_that_is_cut_short_is_refused(tmp_path: Path, ending: str, mode: str, share: float) -> None:
    path = archives(tmp_path, ending, mode)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused_as_cut(tmp_path)


def test_a_tar_with_a_broken_header_is_refused(tmp_path: Path) -> None:
    path = archives(tmp_path, "tar", "w")
    content, at = bytearray(path.read_bytes()), members_end(path)[2]
    content[at + 148 : at + 156] = b"\1" * 8  # its checksum
    path.write_bytes(content)
    refused_as_cut(tmp_path)


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_tar_may_end_with_its_end_mark(tmp_path: Path, blocks: int) -> None:
    """Without the zeros that fill the last record, and with one block where two are usual."""
    path = archives(tmp_path, "tar", "w")
    path.write_bytes(path.read_bytes()[: members_end(path)[-1] + blocks * BLOCK])
    assert len(lln_lab.data.load("dogs_vs_cats", source=tmp_path, cache=tmp_path / "cache", size=8).train) == 3


def test_one_class_is_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        fill(tmp_path, split)
        for file in (tmp_path / split / "dog").iterdir():
            file.unlink()
    with pytest.raises(ValueError, match="one class only, cat; expected at least two"):
        lln_lab.data.load("dogs_vs_cats", source=tmp_path, cache=tmp_path / "cache", size=8)


def test_there_may_be_more_classes_than_a_byte_counts(tmp_path: Path) -> None:
    content = io.BytesIO()
    picture(0, 8, 8).save(content, "PNG")
    for number in range(257):
        (tmp_path / f"{number:03}").mkdir()
        (tmp_path / f"{number:03}" / "0.png").write_bytes(content.getvalue())
    assert pictures.decode(tmp_path, 8, "L")["labels"].tolist() == list(range(257))


def test_generated_pictures_need_shape_not_colour() -> None:
    """The mean colour and the spread of each picture tell the classes apart no better than chance."""
    from sklearn.linear_model import LogisticRegression

    rows = lln_lab.data.load("dogs_vs_cats", size=24).train
    drawn = [rows[index] for index in range(600)]
    seen = numpy.stack([numpy.r_[row["image"].numpy().mean((1, 2)), row["image"].numpy().std((1, 2))] for row in drawn])
    labels = numpy.array([row["label"] for row in drawn])
    score = LogisticRegression(max_iter=500).fit(seen[:400] / 255, labels[:400]).score(seen[400:] / 255, labels[400:])
    assert score < 0.65
