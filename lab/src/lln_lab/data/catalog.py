"""Every task under one name and one call: embedded, from a directory, or from the hub."""

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lln_lab.data.cifar import ColourImages, GreyImages
from lln_lab.data.corpus import Corpus
from lln_lab.data.glue import LAYOUTS, Glue
from lln_lab.data.images import Images
from lln_lab.data.listops import ListOps
from lln_lab.data.missing import missing
from lln_lab.data.needle import Needle
from lln_lab.data.pathfinder import Pathfinder
from lln_lab.data.recall import Recall
from lln_lab.data.retrieval import Retrieval
from lln_lab.data.reviews import Reviews
from lln_lab.data.task import Task, TaskData, at_most, not_empty

TASKS: dict[str, Callable[..., Task]] = {
    **{f"glue/{name}": partial(Glue, name) for name in LAYOUTS},
    **{
        task.name: task
        for task in (Corpus, Images, ColourImages, ListOps, Pathfinder, Reviews, GreyImages, Retrieval, Recall, Needle)
    },
}


def names() -> list[str]:
    """The names of all tasks, sorted."""
    return sorted(TASKS)


def load(
    task: str,
    *,
    source: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
    cache: str | Path | None = None,
    **options: Any,
) -> TaskData:
    """The rows of `task`.

    source   None: embedded data that every machine has. A directory: the set in a common layout, in it or in the folder
             below it that usually holds it. "hub" or "hub:NAME": the Hugging Face hub, or a local folder it understands.
    seed     of generated rows; files do not depend on it.
    limit    at most so many rows of either split.
    cache    where decoded arrays are kept: $LLN_CACHE, or ~/.cache/lln.
    options  the fields of the task's class.

    Raises MissingData when the set is not there, and ValueError when it is not what it should be or a split has no rows.
    """
    chosen = _make(task, options)
    if source is None:
        return at_most(chosen.embedded(seed), limit)
    kind, _, repository = str(source).partition(":")
    if kind == "hub":
        return at_most(not_empty(chosen.hub(repository or None)), limit)
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise missing(task, [f"the directory {folder}"], "see docs/data.md", "name an existing directory, or 'hub'")
    at = Path(cache or os.environ.get("LLN_CACHE") or "~/.cache/lln").expanduser()
    return at_most(not_empty(chosen.directory(folder, at)), limit)


def _make(task: str, options: dict[str, Any]) -> Task:
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; choose from: {', '.join(names())}")
    make = TASKS[task]
    fixed = make.args if isinstance(make, partial) else ()
    of_class: Any = make.func if isinstance(make, partial) else make
    known = [field.name for field in dataclasses.fields(of_class)][len(fixed) :]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"{task} has no option {', '.join(unknown)}; its options: {', '.join(known) or 'none'}")
    return make(**options)
