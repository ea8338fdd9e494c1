"""The discs are connected exactly when the label says so, and nothing simpler than following the curve tells."""

from pathlib import Path

import numpy
import pytest
from PIL import Image
from scipy import ndimage
from sklearn.ensemble import HistGradientBoostingClassifier

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


def test_connected_means_connected() -> None:
    for index in range(40):
        label = index % 2
        picture = curves.draw(numpy.random.default_rng((7, index)), label, SIZE)
        count, paths = discs_and_paths(picture)
        assert count == 2
        assert len(paths) == (1 if label else 2)


def test_brightness_and_the_places_of_the_discs_tell_nothing() -> None:
    """Neither does a classifier that sees them: of 2,000 held-out pictures it gets half right, give or take four deviations."""
    rows = lln_lab.data.load("lra/pathfinder").train
    labels, told = [], []
    for index in range(6000):
        row = rows[index]
        picture = row["input_ids"].numpy().reshape(32, 32) - 1
        discs, count = ndimage.label(picture > 215)
        places = sorted(ndimage.center_of_mass(picture, discs, range(1, count + 1)))
        assert count == 2
        (y, x), (v, u) = places
        labels.append(row["label"])
        told.append([y, x, v, u, numpy.hypot(y - v, x - u), picture.sum()])
    classifier = HistGradientBoostingClassifier(random_state=0).fit(told[:4000], labels[:4000])
    assert abs(classifier.score(told[4000:], labels[4000:]) - 0.5) < 4 * 0.5 / 2000**0.5


def test_there_are_distractors() -> None:
    """More pieces than the two long curves."""
    for index in range(10):
        picture = curves.draw(numpy.random.default_rng((8, index)), 1, SIZE)
        _, pieces = ndimage.label(ndimage.binary_dilation(picture > 60, iterations=2), structure=numpy.ones((3, 3)))
        assert 5 <= pieces <= 12


def test_curves_of_other_lengths_are_not_generated() -> None:
    for dashes in (9, 14):
        with pytest.raises(ValueError, match=f"with {dashes} the places of the discs would give the label away"):
            lln_lab.data.load("lra/pathfinder", dashes=dashes)


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
