"""A set that is not there: what was looked for and where, which layouts fit, and how to get it."""

from collections.abc import Iterable


class MissingData(FileNotFoundError):
    """A data set that the user named is not where it should be."""


def missing(task: str, looked_for: Iterable[object], layouts: str, get: str) -> MissingData:
    return MissingData(
        f"the data of {task} is not there.\n"
        + "".join(f"  looked for: {place}\n" for place in looked_for)
        + f"  layouts that fit: {layouts}\n"
        + f"  how to get it: {get}\n"
        + "  without a source, the embedded data is used"
    )
