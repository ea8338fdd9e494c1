"""Sets of the Hugging Face hub, or of a local folder that `datasets.load_dataset` understands."""

from typing import Any

from lln_lab.data.missing import MissingData, missing


def load_splits(task: str, repository: str, config: str | None, *splits: str) -> list[Any]:
    """The splits, each a `datasets.Dataset`."""
    import datasets

    try:
        return datasets.load_dataset(repository, config, split=list(splits))
    except (OSError, ValueError) as reason:  # not found, no network, no such configuration or split
        where = f"{repository}, configuration {config}, splits {' and '.join(splits)}: {reason}"
        layouts = "a repository of the hub, or a folder with its files, with this configuration and these splits"
        get = "check the name, the network and HF_HUB_OFFLINE, or give a directory instead"
        raise missing(task, [where], layouts, get) from reason


def check_columns(task: str, table: Any, *needed: str) -> None:
    """Raises ValueError when a `datasets.Dataset` does not have these columns."""
    if absent := [name for name in needed if name not in table.column_names]:
        columns = ", ".join(table.column_names)
        raise ValueError(
            f"{task} needs the columns {' and '.join(needed)}; there is no {', '.join(absent)} in {columns}"
        )


def no_hub(task: str) -> MissingData:
    return missing(
        task, ["the hub"], "a directory, for sets that are released as files", "see the table in docs/data.md"
    )
