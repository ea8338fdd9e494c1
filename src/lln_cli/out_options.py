"""`--out`, checked before the work, so that none is lost to a folder that cannot be written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

RUNS = Path("runs")  # where a command without --out writes


def folder_to_write(help: str, *names: str) -> Any:
    """An option that names a folder, which need not exist yet."""
    return typer.Option(*names, callback=_checked_folder, help=help)


def file_to_write(help: str, *names: str) -> Any:
    """An option that names a file, whose folder need not exist yet."""
    return typer.Option(*names, callback=_checked_file, help=help)


def _checked_folder(given: Path | None) -> Path | None:
    from lln.writing import refuse_unwritable_folder

    _refuse(refuse_unwritable_folder, given or RUNS)
    return given


def _checked_file(given: Path | None) -> Path | None:
    from lln.writing import refuse_unwritable_file

    if given is not None:
        _refuse(refuse_unwritable_file, given)
    return given


def _refuse(check: Callable[[Path], None], path: Path) -> None:
    try:
        check(path)
    except OSError as reason:
        raise typer.BadParameter(reason.strerror or str(reason)) from None
