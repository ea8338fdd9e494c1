"""A run's folder belongs to one process at a time: a second start is told so, instead of breaking the first one's saves."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a Unix: nothing to hold on to
    fcntl = None  # type: ignore[assignment]

FILE = ".lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Inside, nobody else runs in the folder. The system lets go when the process ends, however it ends."""
    if fcntl is None:
        yield
        return
    with (folder / FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is running in {folder}: wait for it, or choose another --out") from None
        yield
