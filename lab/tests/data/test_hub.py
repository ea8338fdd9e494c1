"""source="hub:NAME" goes through datasets.load_dataset, here with folders of files in place of repositories."""

from pathlib import Path

import datasets
import numpy
import pytest
from PIL import Image

import lln_lab.data


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub-cache")


def repository(folder: Path, tables: dict[str, datasets.Dataset], config: str = "default") -> str:
    folder.mkdir()
    files = ""
    for split, table in tables.items():
        table.to_parquet(folder / f"{config}-{split}.parquet")
        files += f"  - split: {split}\n    path: {config}-{split}.parquet\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{files}---\n")
    return f"hub:{folder}"


def test_glue(tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict(
        {"premise": ["A", "B"], "hypothesis": ["C", "D"], "label": [2, 0], "idx": [0, 1]}
    )
    name = repository(tmp_path / "glue", {"train": table, "validation_matched": table.select([1])}, "mnli")
    data = lln_lab.data.load("glue/mnli", source=name)
    assert data.source == name and data.classes == 3
    assert data.train[0] == {"text": "A", "pair": "C", "label": 2} and len(data.validation) == 1
    with pytest.raises(lln_lab.data.MissingData, match="sst2"):
        lln_lab.data.load("glue/sst2", source=name)


def test_single_sentences(tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict({"sentence": ["A", "B"], "label": [1, 0], "idx": [0, 1]})
    name = repository(tmp_path / "glue", {"train": table, "validation": table}, "sst2")
    assert lln_lab.data.load("glue/sst2", source=name).train[0] == {"text": "A", "pair": None, "label": 1}


def test_wikitext_lines_become_documents(tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict({"text": ["", " = One = \n", "", " Text . \n", "", " = Two = \n", ""]})
    name = repository(tmp_path / "wiki", {"train": table, "validation": table}, "wikitext-2-raw-v1")
    data = lln_lab.data.load("wikitext", source=name, config="wikitext-2-raw-v1")
    assert [row["text"].split()[1] for row in data.train] == ["One", "Two"]  # type: ignore[attr-defined]


def test_reviews(tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict({"text": ["abc", "b"], "label": [1, 0]})
    data = lln_lab.data.load(
        "lra/text", source=repository(tmp_path / "imdb", {"train": table, "test": table}), length=2
    )
    assert data.train[0]["input_ids"].tolist() == [98, 99] and data.train[0]["label"] == 1


@pytest.mark.parametrize(
    ("task", "columns", "told"),
    [
        ("lra/text", {"review": ["a"], "label": [1]}, "no text in review, label"),
        ("wikitext", {"line": ["a"]}, "no text in line"),
    ],
)
def test_tables_without_the_columns_are_refused(tmp_path: Path, task: str, columns: dict, told: str) -> None:
    table = datasets.Dataset.from_dict(columns)
    name = repository(tmp_path / "set", {"train": table, "test": table, "validation": table})
    with pytest.raises(ValueError, match=told):
        lln_lab.data.load(task, source=name, **({"config": "default"} if task == "wikitext" else {}))


@pytest.mark.parametrize("label", ["label", "labels"])
def test_pictures(tmp_path: Path, label: str) -> None:
    colours = [(50, 50, 50), (200, 200, 200)]
    images = [Image.new("RGB", (32, 32), colour) for colour in colours]
    features = datasets.Features({"img": datasets.Image(), label: datasets.Value("int64")})
    table = datasets.Dataset.from_dict({"img": images, label: [3, 4]}, features=features)
    name = repository(tmp_path / "cifar", {"train": table, "test": table})
    grey = lln_lab.data.load("lra/image", source=name)
    assert (grey.train[1]["input_ids"] == 201).all() and grey.train[1]["label"] == 4
    whole = lln_lab.data.load("cifar10", source=name)
    assert (whole.train[1]["image"] == 200).all() and whole.train[1]["image"].shape == (3, 32, 32)
    colour = lln_lab.data.load("dogs_vs_cats", source=name, size=8)
    assert colour.train[0]["image"].shape == (3, 8, 8) and (colour.train[0]["image"].numpy() == numpy.uint8(50)).all()


@pytest.mark.parametrize(
    ("task", "called"),
    [
        ("glue/qnli", ("nyu-mll/glue", "qnli", ["train", "validation"])),
        ("glue/mnli", ("nyu-mll/glue", "mnli", ["train", "validation_matched"])),
        ("wikitext", ("Salesforce/wikitext", "wikitext-103-raw-v1", ["train", "validation"])),
        ("lra/text", ("stanfordnlp/imdb", None, ["train", "test"])),
        ("lra/image", ("uoft-cs/cifar10", None, ["train", "test"])),
        ("cifar10", ("uoft-cs/cifar10", None, ["train", "test"])),
        ("dogs_vs_cats", ("microsoft/cats_vs_dogs", None, ["train"])),
    ],
)
def test_the_usual_repositories(task: str, called: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of the hub, which these tests do not reach."""
    asked = []

    def offline(name: str, config: str | None, split: list[str]) -> None:
        asked.append((name, config, split))
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(lln_lab.data.MissingData, match="no network"):
        lln_lab.data.load(task, source="hub")
    assert asked == [called]


@pytest.mark.parametrize("task", ["lra/listops", "lra/pathfinder", "lra/retrieval"])
def test_sets_that_the_hub_does_not_have_in_a_known_form(task: str) -> None:
    with pytest.raises(lln_lab.data.MissingData, match="the hub"):
        lln_lab.data.load(task, source="hub")
