"""Files are there whole or not at all; where nothing can be written is known before."""

import errno
import tempfile
from pathlib import Path

import pytest

from lln.writing import refuse_unwritable_file, refuse_unwritable_folder, whole


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    with whole(path) as aside:
        aside.write_text("half")
        assert not path.exists()
        aside.write_text("whole")
    assert path.read_text() == "whole" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "result.json"
    path.write_text("before")
    with pytest.raises(type(error)), whole(path) as aside:
        aside.write_text("half")
        raise error
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_can_be_made_is_not_made_by_asking(tmp_path: Path) -> None:
    refuse_unwritable_folder(tmp_path / "runs" / "demo")
    refuse_unwritable_file(tmp_path / "runs" / "result.json")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(NotADirectoryError, match="runs is a file"):
        refuse_unwritable_folder(tmp_path / "runs" / "demo")
    with pytest.raises(IsADirectoryError, match="name a file"):
        refuse_unwritable_file(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_found_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: full)
        with pytest.raises(OSError, match="nothing can be written to .*: No space left on device"):
            refuse_unwritable_folder(tmp_path)
