"""glue/*: the GLUE tasks as rows {"text", "pair", "label"}; pair is None for single sentences."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lln_lab.data import glue_stand_in, hub
from lln_lab.data.files import checksums, locate, places, utf8_of
from lln_lab.data.generated import splits
from lln_lab.data.missing import missing
from lln_lab.data.task import Rows, TaskData

ROWS = (4096, 512)  # of a stand-in: training, validation


@dataclass(frozen=True)
class Layout:
    """The official tsv files of a task, and its columns on the hub."""

    folder: str
    text: str
    pair: str | None
    label: str
    classes: tuple[str, ...]  # in the order of the labels on the hub; empty: the label is a number
    hub_text: str
    hub_pair: str | None = None
    header: tuple[str, ...] | None = None  # None: the first line of the file
    dev: str = "dev.tsv"
    hub_dev: str = "validation"


BINARY = ("0", "1")
ENTAILED = ("entailment", "not_entailment")
LAYOUTS = {
    "cola": Layout(
        "CoLA", "sentence", None, "label", BINARY, "sentence", header=("source", "label", "judgement", "sentence")
    ),
    "mnli": Layout(
        "MNLI",
        "sentence1",
        "sentence2",
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        "premise",
        "hypothesis",
        dev="dev_matched.tsv",
        hub_dev="validation_matched",
    ),
    "mrpc": Layout("MRPC", "#1 String", "#2 String", "Quality", BINARY, "sentence1", "sentence2"),
    "qnli": Layout("QNLI", "question", "sentence", "label", ENTAILED, "question", "sentence"),
    "qqp": Layout("QQP", "question1", "question2", "is_duplicate", BINARY, "question1", "question2"),
    "rte": Layout("RTE", "sentence1", "sentence2", "label", ENTAILED, "sentence1", "sentence2"),
    "sst2": Layout("SST-2", "sentence", None, "label", BINARY, "sentence"),
    "stsb": Layout("STS-B", "sentence1", "sentence2", "score", (), "sentence1", "sentence2"),
    "wnli": Layout("WNLI", "sentence1", "sentence2", "label", BINARY, "sentence1", "sentence2"),
}


@dataclass(frozen=True)
class Glue:
    task: str

    @property
    def name(self) -> str:
        return f"glue/{self.task}"

    def embedded(self, seed: int) -> TaskData:
        make, what = glue_stand_in.KINDS[self.task]
        train, validation = (_drawn(rows) for rows in splits(make, seed, *ROWS))
        return self._data(f"embedded (generated, not {self.task.upper()}: {what})", train, validation, {})

    def directory(self, folder: Path, cache: Path) -> TaskData:
        layout = LAYOUTS[self.task]
        folders = (f"glue/{layout.folder}", f"GLUE/{layout.folder}", layout.folder)
        place, files = locate(folder, folders, self._files)
        if place is None or files is None:
            layouts = f"GLUE's tsv files train.tsv and {layout.dev} in {layout.folder}"
            get = f"the {layout.folder} archive of gluebenchmark.com, or source='hub'"
            raise missing(self.name, places(folder, folders), layouts, get)
        train, validation = (_table(list(_read(path, layout))) for path in files)
        return self._data(str(place), train, validation, checksums(place, files))

    def hub(self, repository: str | None) -> TaskData:
        layout = LAYOUTS[self.task]
        repository = repository or "nyu-mll/glue"
        parts = hub.load_splits(self.name, repository, self.task, "train", layout.hub_dev)
        train, validation = (_from_hub(part, layout) for part in parts)
        return self._data(f"hub:{repository}", train, validation, {})

    def _files(self, place: Path) -> tuple[Path, Path] | None:
        train, dev = place / "train.tsv", place / LAYOUTS[self.task].dev
        return (train, dev) if train.is_file() and dev.is_file() else None

    def _data(self, source: str, train: Any, validation: Any, files: dict[str, str]) -> TaskData:
        return TaskData(self.name, source, train, validation, len(LAYOUTS[self.task].classes) or 1, files=files)


def _read(path: Path, layout: Layout) -> Iterator[tuple[str, str | None, int | float]]:
    """Quotes are part of the text in GLUE's files. Lines with too few columns (QQP has some) are left out."""
    with utf8_of(path), path.open(encoding="utf-8-sig", newline="\n") as file:
        header = layout.header or file.readline().rstrip("\r\n").split("\t")
        wanted = [layout.text, layout.label, *([layout.pair] if layout.pair else [])]
        if absent := [column for column in wanted if column not in header]:
            raise ValueError(f"{path} has the columns {', '.join(header) or 'none'} but not {', '.join(absent)}")
        text, label, *pair = (header.index(column) for column in wanted)
        empty = True
        for line in file:
            columns = line.rstrip("\r\n").split("\t")
            if len(columns) >= len(header):
                empty = False
                yield columns[text], columns[pair[0]] if pair else None, _label(columns[label], layout, path)
    if empty:
        raise ValueError(f"{path} has no row with the {len(header)} columns {', '.join(header)}")


def _label(value: str, layout: Layout, path: Path) -> int | float:
    if not layout.classes:
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{path} has the {layout.label} {value!r}, which is not a number") from None
    if value not in layout.classes:
        raise ValueError(f"{path} has the label {value!r}; {layout.folder} has {', '.join(layout.classes)}")
    return layout.classes.index(value)


def _table(rows: list[tuple[str, str | None, int | float]]) -> Any:
    from datasets import Dataset

    texts, pairs, labels = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    return Dataset.from_dict({"text": texts, "pair": pairs, "label": labels})


def _drawn(rows: Rows) -> Any:
    drawn = (rows[index] for index in range(len(rows)))
    return _table([(row["text"], row["pair"], row["label"]) for row in drawn])


def _from_hub(part: Any, layout: Layout) -> Any:
    part = part.rename_column(layout.hub_text, "text") if layout.hub_text != "text" else part
    if layout.hub_pair:
        part = part.rename_column(layout.hub_pair, "pair")
    else:
        part = part.add_column("pair", [None] * len(part))
    return part.select_columns(["text", "pair", "label"])
