"""GLUE's files as they are released, and stand-ins that cannot be solved by words alone."""

from pathlib import Path

import numpy
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

import lln_lab.data
from lln_lab.data import glue_stand_in

# task: (folder, dev file, lines of a file, the row that the last line gives)
MNLI = "\t".join(["index", "promptID", "pairID", "genre", "p1", "p2", "p3", "p4", "sentence1", "sentence2", "label1"])
FILES = {
    "sst2": ("SST-2", "dev.tsv", ["sentence\tlabel", 'a "quoted word \t1'], ('a "quoted word ', None, 1)),
    "cola": (
        "CoLA",
        "dev.tsv",
        ["gj04\t1\t\tFirst .", "gj04\t0\t*\tThe sailors rode ."],
        ("The sailors rode .", None, 0),
    ),
    "qnli": (
        "QNLI",
        "dev.tsv",
        ["index\tquestion\tsentence\tlabel", "7\tWho ?\tHe .\tnot_entailment"],
        ("Who ?", "He .", 1),
    ),
    "rte": ("RTE", "dev.tsv", ["index\tsentence1\tsentence2\tlabel", "7\tA\tB\tentailment"], ("A", "B", 0)),
    "wnli": ("WNLI", "dev.tsv", ["index\tsentence1\tsentence2\tlabel", "7\tA\tB\t1"], ("A", "B", 1)),
    "mrpc": (
        "MRPC",
        "dev.tsv",
        ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r", "1\t70\t71\tA .\tB .\r"],
        ("A .", "B .", 1),
    ),
    "qqp": (
        "QQP",
        "dev.tsv",
        ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\tbroken line", "1\t2\t3\tA ?\tB ?\t0"],
        ("A ?", "B ?", 0),
    ),
    "stsb": (
        "STS-B",
        "dev.tsv",
        [
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
            "0\tm\tf\t2012\t1\tn\tn\tA .\tB .\t3.800",
        ],
        ("A .", "B .", 3.8),
    ),
    "mnli": (
        "MNLI",
        "dev_matched.tsv",
        [f"{MNLI}\tgold_label", "0\t1\t1e\tfiction\t(\t(\t(\t(\tA .\tB .\tneutral\tcontradiction"],
        ("A .", "B .", 2),
    ),
}


def write(folder: Path, task: str) -> None:
    name, dev, lines, _ = FILES[task]
    place = folder / name
    place.mkdir(parents=True)
    for file in ("train.tsv", dev):
        (place / file).write_bytes("".join(line + "\n" for line in lines).encode())


@pytest.mark.parametrize("task", FILES)
def test_the_official_columns(task: str, tmp_path: Path) -> None:
    write(tmp_path / "glue", task)
    data = lln_lab.data.load(f"glue/{task}", source=tmp_path)
    folder, dev, lines, expected = FILES[task]
    assert data.train[-1] == dict(zip(("text", "pair", "label"), expected, strict=True))
    broken = sum("broken" in line for line in lines)
    assert len(data.validation) == len(lines) - broken - (task != "cola")  # CoLA has no header
    assert set(data.files) == {"train.tsv", dev}
    assert len(lln_lab.data.load(f"glue/{task}", source=tmp_path / "glue").train) == len(data.train)
    assert len(lln_lab.data.load(f"glue/{task}", source=tmp_path / "glue" / folder).train) == len(data.train)


def test_files_of_another_task_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "sst2")
    with pytest.raises(ValueError, match="but not"):
        lln_lab.data.load("glue/qnli", source=tmp_path / "SST-2")


def test_an_unknown_label_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "qnli")
    path = tmp_path / "QNLI" / "train.tsv"
    path.write_text(path.read_text().replace("not_entailment", "-"))
    with pytest.raises(ValueError, match="label '-'"):
        lln_lab.data.load("glue/qnli", source=tmp_path)


@pytest.mark.parametrize("task", FILES)
@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_file_without_rows_is_refused_when_it_is_read(task: str, split: str, tmp_path: Path) -> None:
    write(tmp_path, task)
    folder, dev, lines, _ = FILES[task]
    path = tmp_path / folder / ("train.tsv" if split == "train" else dev)
    path.write_text("" if task == "cola" else lines[0] + "\nshort\n")
    with pytest.raises(ValueError, match=f"{path.name} has no row with the .* columns"):
        lln_lab.data.load(f"glue/{task}", source=tmp_path)


def test_an_empty_file_and_a_score_that_is_no_number_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "stsb")
    path = tmp_path / "STS-B" / "dev.tsv"
    path.write_text(path.read_text().replace("3.800", "much"))
    with pytest.raises(ValueError, match=r"dev\.tsv has the score 'much', which is not a number"):
        lln_lab.data.load("glue/stsb", source=tmp_path)
    path.write_text("")
    with pytest.raises(ValueError, match=r"dev\.tsv has the columns none but not sentence1"):
        lln_lab.data.load("glue/stsb", source=tmp_path)


def test_text_that_is_not_utf_8_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "sst2")
    (tmp_path / "SST-2" / "dev.tsv").write_bytes("sentence\tlabel\nschön\t1\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"dev\.tsv is not UTF-8"):
        lln_lab.data.load("glue/sst2", source=tmp_path)


def rows(task: str, count: int = 3000) -> tuple[list[dict], numpy.ndarray]:
    make, _ = glue_stand_in.KINDS[task]
    drawn = [make(numpy.random.default_rng((9, index))) for index in range(count)]
    return drawn, numpy.array([row["label"] for row in drawn])


@pytest.mark.parametrize("task", [task for task in FILES if task != "stsb"])
def test_stand_ins_are_balanced_and_not_solved_by_words(task: str) -> None:
    """A bag of words stays far from all right: at most the share that is told by which words occur at all."""
    drawn, labels = rows(task)
    shares = numpy.bincount(labels) / len(labels)
    assert abs(shares - 1 / len(shares)).max() < 0.04
    texts = [f"{row['text']} / {row['pair'] or ''}" for row in drawn]
    words = CountVectorizer(token_pattern=r"\S+").fit_transform(texts)
    model = LogisticRegression(max_iter=200).fit(words[:2000], labels[:2000])
    assert model.score(words[2000:], labels[2000:]) < 0.8


def solve(task: str, row: dict) -> int:
    """The label from the text alone, by rules that look at order."""
    if task == "sst2":
        main = row["text"].removesuffix(" .").split(" , but ")[-1].split(" , although ")[0]
        positive = any(word in main.split() for word in glue_stand_in.POSITIVE)
        return int(positive != any(f" {negation} " in f" {main} " for negation in glue_stand_in.NEGATIONS))
    facts = [fact.split() for fact in row["pair" if task == "qnli" else "text"].removesuffix(" .").split(" and ")]
    told = {(fact[0], fact[3]): " ".join(fact[4:]) for fact in facts}
    if task == "qnli":
        word, _, person, _, _, thing, _ = row["text"].split()
        return int(not ((person, thing) in told and (word == "where") == told[person, thing].startswith("in the ")))
    _, thing, _, person, *says = row["pair"].removesuffix(" .").split()
    if says[0] == "was" or (person, thing) not in told:
        return 1
    place = " ".join(says).removeprefix("is ")
    return 0 if place == told[person, thing] else 2


@pytest.mark.parametrize("task", ["sst2", "qnli", "mnli"])
def test_stand_ins_are_right(task: str) -> None:
    drawn, labels = rows(task, 500)
    assert [solve(task, row) for row in drawn] == labels.tolist()


@pytest.mark.parametrize("task", ["qnli", "mnli", "rte", "wnli"])
def test_negatives_are_made_of_the_words_of_the_facts(task: str) -> None:
    drawn, _ = rows(task, 300)
    asks, tells = ("text", "pair") if task == "qnli" else ("pair", "text")
    own = set(f"where when did leave ? of is not was lost {' '.join(glue_stand_in.TIMES)}".split())
    assert all(set(row[asks].split()) <= {*row[tells].split(), *own} for row in drawn)


def test_the_clauses_of_a_contrast_disagree() -> None:
    contrasts = 0
    for row in rows("sst2", 300)[0]:
        for between in (" , but ", " , although "):
            if between in row["text"]:
                first, second = row["text"].removesuffix(" .").split(between)
                assert solve("sst2", {"text": first}) != solve("sst2", {"text": second})
                contrasts += 1
    assert contrasts > 100


def test_two_way_inference_agrees_with_three_way() -> None:
    for task, follows in (("rte", 0), ("wnli", 1)):
        drawn, labels = rows(task, 300)
        assert [follows if solve("mnli", row) == 0 else 1 - follows for row in drawn] == labels.tolist()


def event(sentence: str) -> tuple[str, ...]:
    words = sentence.removesuffix(" .").split()
    if words[1] == "gave":
        return words[0], words[3], words[5], words[8]
    if words[1] == "got":
        return words[5], words[3], words[0], words[8]
    if words[2] == "went":
        return words[4], words[1], words[6], words[9]
    return words[9], words[7], words[3], words[2]


def test_paraphrases_tell_the_same_event_and_only_they() -> None:
    drawn, labels = rows("qqp", 500)
    assert [int(event(row["text"]) == event(row["pair"])) for row in drawn] == labels.tolist()


def test_similarity_counts_the_details_that_are_shared() -> None:
    drawn, labels = rows("stsb", 500)
    for row, label in zip(drawn, labels, strict=True):
        time = [next(t for t in glue_stand_in.TIMES if row[key].endswith(f"{t} .")) for key in ("text", "pair")]
        details = zip(event(row["text"]), event(row["pair"]), strict=True)
        assert sum(a == b for a, b in details) + (time[0] == time[1]) == label
