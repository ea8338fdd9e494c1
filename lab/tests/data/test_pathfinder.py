"""The discs are connected exactly when the label says so, and nothing simpler than following the curve tells."""

from pathlib import Path

import numpy
import pytest
from PIL import Image
from scipy import ndimage
from sklearn.metrics import roc_auc_score

import lln_lab.data
from lln_lab.data import curves

SIZE = 160  # five times the size, where gaps can be closed without two curves touching


def discs_and_paths(picture: numpy.ndarray) -> tuple[int, set[int]]:
    """(number of discs, the connected curves they stand on)."""
    closed = ndimage.binary_dilation(picture > 60, iterations=2)
    paths, _ = ndimage.label(closed, structure=numpy.ones((3, 3)))
    discs, count = ndimage.label(ndimage.binary_opening(picture > 230, iterations=4))
    places = [tuple(int(x) for x in centre) for centre in ndimage.center_of_mass(discs, discs, range(1, count + 1))]
    return count, {int(paths[place]) for place in places}


@pytest.mark.parametrize("dashes", [6, 9, 14])
def test_connected_means_connected(dashes: int) -> None:
    for index in range(40):
        label = index % 2
        picture = curves.draw(numpy.random.default_rng((7, index)), label, SIZE, dashes)
        count, paths = discs_and_paths(picture)
        assert count == 2
        assert len(paths) == (1 if label else 2)


@pytest.mark.parametrize("dashes", [6, 9])
def test_brightness_and_the_distance_of_the_discs_tell_nothing(dashes: int) -> None:
    rows = lln_lab.data.load("lra/pathfinder", dashes=dashes).train
    labels, light, distance = [], [], []
    for index in range(400):
        row = rows[index]
        picture = row["input_ids"].numpy().reshape(32, 32) - 1
        y, x = numpy.nonzero(picture == 255)
        labels.append(row["label"])
        light.append(picture.sum())
        distance.append(numpy.hypot(x.std(), y.std()))
    assert 0.4 < numpy.mean(labels) < 0.6
    typical = numpy.median([far for far, label in zip(distance, labels, strict=True) if label])
    for told in (light, distance, abs(distance - typical)):
        assert abs(roc_auc_score(labels, told) - 0.5) < 0.1


def test_there_are_distractors() -> None:
    """More pieces than the two long curves."""
    for index in range(10):
        picture = curves.draw(numpy.random.default_rng((8, index)), 1, SIZE, 6)
        _, pieces = ndimage.label(ndimage.binary_dilation(picture > 60, iterations=2), structure=numpy.ones((3, 3)))
        assert 5 <= pieces <= 12


def test_the_release(tmp_path: Path) -> None:
    folder = tmp_path / "pathfinder32" / "curv_contour_length_9"
    (folder / "metadata").mkdir(parents=True)
    for part in range(2):
        (folder / "imgs" / str(part)).mkdir(parents=True)
        lines = []
        for number in range(10):
            Image.new("L", (32, 32), 10 * part + number).save(folder / "imgs" / str(part) / f"sample_{number}.png")
            lines.append(f"imgs/{part} sample_{number}.png {number} {number % 2} 1.0 9 0.75\n")
        (folder / "metadata" / f"{part}.npy").write_text("".join(lines))
    (folder / "imgs" / "0" / "sample_3.png").write_bytes(b"")  # as in the release
    data = lln_lab.data.load("lra/pathfinder", source=tmp_path, cache=tmp_path / "cache", dashes=9)
    assert len(data.train) == int(0.8 * 19) and len(data.validation) == 17 - 15
    assert data.train[4]["label"] == 1 and (data.train[4]["input_ids"] == 6).all()  # picture 5, as number 3 is empty
    assert data.train[3]["input_ids"].shape == (1024,)
    with pytest.raises(lln_lab.data.MissingData, match="curv_contour_length_14"):
        lln_lab.data.load("lra/pathfinder", source=tmp_path, cache=tmp_path / "cache", dashes=14)


@pytest.mark.parametrize(
    ("lines", "told"),
    [("imgs/0 sample_0.png\n", "0.npy, line 1"), ("", "metadata lists no non-empty picture"), (None, "no rows")],
)
def test_lists_without_pictures_are_refused_by_name(tmp_path: Path, lines: str | None, told: str) -> None:
    (tmp_path / "metadata").mkdir()
    Image.new("L", (32, 32)).save(tmp_path / "one.png")
    (tmp_path / "metadata" / "0.npy").write_text(". one.png 0 1 1.0\n" if lines is None else lines)
    with pytest.raises(ValueError, match=told):
        lln_lab.data.load("lra/pathfinder", source=tmp_path, cache=tmp_path / "cache")
