"""Files that are written whole or not at all, and a check before the work that a place can be written to."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to. It replaces `path` at the end, and is removed if anything fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".part")
    try:
        yield aside
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def refuse_unwritable_folder(folder: Path) -> None:
    """OSError, in words, unless files can be written in `folder`, which need not exist yet. Nothing is left behind."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise NotADirectoryError(f"nothing can be written to {folder}: {there} is a file")
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(4096))  # a full disk lets an empty file be made
            file.flush()
    except OSError as reason:
        raise OSError(reason.errno, f"nothing can be written to {folder}: {reason.strerror or reason}") from reason


def refuse_unwritable_file(path: Path) -> None:
    """OSError, in words, unless the file can be written; its folder need not exist yet."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file")
    refuse_unwritable_folder(path.parent)
