from pathlib import Path

from lln_lab.pages.measured import grouped, page

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_page_of_results_is_up_to_date() -> None:
    assert (DOCS / "measured.md").read_text() == page(DOCS / "results"), "run: python -m lln_lab.pages.measured docs"


def test_a_command_in_a_result_names_no_path_of_a_machine() -> None:
    text = (DOCS / "measured.md").read_text()
    assert "/tmp/" not in text and "/home/" not in text and "## " in text


def test_values_are_told_once_where_all_share_them() -> None:
    assert grouped([("text", 8), ("listops", 8)]) == "8"
    assert grouped([("text", 8), ("listops", 16), ("image", 8), ("text", 8)]) == "8 (text, image) and 16 (listops)"
