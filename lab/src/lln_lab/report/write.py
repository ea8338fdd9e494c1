"""From folders of results to a page on disk."""

import warnings
from collections.abc import Iterable
from pathlib import Path

from lln.writing import whole
from lln_lab.report.collect import collect
from lln_lab.report.page import render
from lln_lab.report.readers import read


class NoResults(ValueError):
    """There is nothing to report."""


def write(results: Iterable[str | Path], out: str | Path, title: str | None = None) -> Path:
    """One self-contained page of every result in `results` (folders and JSON files), whole or not at all.

    What was left out is said by a warning and on the page. Raises FileNotFoundError for a path that does not exist and
    NoResults when there is no result at all.
    """
    found = collect(results)
    for notice in found.notices:
        warnings.warn(notice, stacklevel=2)
    if not found.results:
        raise NoResults("no results found: a result is a JSON file with its provenance, as every lln command writes it")
    out = Path(out)
    page = render([read(result) for result in found.results], found.notices, title)
    with whole(out) as aside:
        aside.write_text(page, encoding="utf-8")
    return out
