import json
import re
from pathlib import Path

from lln_lab.pages.measured import page
from lln_lab.pages.runs_in_words import grouped, ranged
from lln_lab.pages.tables import chosen, markdown, minus, with_names

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_page_of_results_is_up_to_date() -> None:
    assert (DOCS / "measured.md").read_text() == page(DOCS / "results"), "run: python -m lln_lab.pages.measured docs"


def test_a_command_in_a_result_names_no_path_of_a_machine() -> None:
    text = (DOCS / "measured.md").read_text()
    assert "/tmp/" not in text and "/home/" not in text and "## " in text


def test_a_table_of_the_paper_is_shown_once() -> None:
    titles = re.findall(r"^\*\*(.* of the paper.*)\*\*$", (DOCS / "measured.md").read_text(), flags=re.MULTILINE)
    assert titles and len(titles) == len(set(titles))


def test_no_heading_occurs_twice_and_every_link_to_one_arrives() -> None:
    text = (DOCS / "measured.md").read_text()
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    assert len(headings) == len(set(headings))
    anchors = {re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings}
    assert set(re.findall(r"\(#([\w-]+)\)", text)) <= {re.sub(r"[-\s]+", "-", one) for one in anchors}


def test_every_training_result_is_linked_from_a_page() -> None:
    trained = {path.stem for path in (DOCS / "results").glob("*.json") if _has_runs(path)}
    pages = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    assert trained <= set(re.findall(r"results/(\w+)\.json\)", pages))


def _has_runs(path: Path) -> bool:
    found = json.loads(path.read_text())
    return isinstance(found, dict) and {"runs", "tables", "verdicts"} <= found.keys() and "budget" in found["runs"][0]


def test_values_are_told_once_where_all_share_them() -> None:
    assert grouped([("text", 8), ("listops", 8)]) == "8"
    assert grouped([("text", 8), ("listops", 16), ("image", 8), ("text", 8)]) == "8 (Text, Image); 16 (ListOps)"
    assert grouped([("recall/64", 1), ("needle/64", 1), ("recall/128", 2), ("recall/256", 2)]) == (
        "1 (recall and needle at 64); 2 (recall at 128 to 256)"
    )


def test_sources_that_differ_in_a_number_are_one() -> None:
    assert ranged(["4 pairs in 64 tokens", "4 pairs in 4096 tokens", "4 pairs in 128 tokens"]) == (
        "4 pairs in 64 to 4,096 tokens"
    )


def test_a_column_that_says_the_same_everywhere_is_left_out() -> None:
    table = {
        "title": "T",
        "columns": ["attention", "loss", "seeds", "none"],
        "rows": [["lln", 1.5, 3, None], ["elu", -2.25, 3, None]],
    }
    assert chosen(table) == (["attention", "loss"], [["lln", 1.5], ["elu", -2.25]])
    assert markdown(table)[2:] == ["| attention | loss |", "| --- | ---: |", "| LLN | 1.50 |", "| ELU + 1 | −2.25 |"]


def test_a_verdict_names_attentions_and_tasks_as_a_reader_knows_them() -> None:
    text = "lln_diag scores as softmax does on listops: 32.6 ± 0.9 against 31.6 ± 0.7 of softmax; gain seed by seed -1 [-2, 2]"
    assert with_names(text) == (
        "LLN+Diag scores as softmax does on ListOps: 32.6 ± 0.9, softmax 31.6 ± 0.7; paired gain −1 [−2, 2]"
    )


def test_minus_signs_and_powers_are_set_as_such() -> None:
    assert minus("2^-18.0, not pre-2, but -1.5 and [-2, +3]") == "2<sup>−18.0</sup>, not pre-2, but −1.5 and [−2, +3]"
