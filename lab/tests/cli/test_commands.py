"""The laboratory's commands as a user types them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lln_cli.app import SUMMARY, app
from lln_lab.cli import bench, reproduce

runner = CliRunner()


def invoke(*arguments: str) -> str:
    result = runner.invoke(app, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_demo_ends_with_the_path_of_its_report(tmp_path: Path) -> None:
    text = invoke("demo", "--steps", "2", "--longest", "512", "--out", str(tmp_path))
    result = json.loads((tmp_path / "demo.json").read_text())
    maps = json.loads((tmp_path / result["maps_beside"]).read_text())["maps"]
    assert [run["attention"] for run in result["runs"]] == ["softmax", "lln", "lln_diag"]
    assert all(run["steps"] == 2 and "attention/0/entropy" in run["history"][0] for run in result["runs"])
    assert result["provenance"]["versions"]["torch"] and result["timing"]["lengths"] == [256, 512]
    assert {(m["attention"], m["layer"], m["head"]) for m in maps} == {
        (kind, layer, head) for kind in ("softmax", "lln", "lln_diag") for layer in range(3) for head in range(4)
    }
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    page = tmp_path / "report.html"
    assert str(page) in text.replace("\n", "") and "LLN+Diag" in page.read_text()


@pytest.mark.parametrize("command", ["demo", "bench", "reproduce", "report"])
def test_help_helps(command: str) -> None:
    assert "Usage" in invoke(command, "--help")


def test_a_wrong_option_is_refused_with_what_fits() -> None:
    result = runner.invoke(app, ["demo", "--steps", "0"], env={"COLUMNS": "120"})
    assert result.exit_code == 2 and "--steps" in result.output and "greater than or equal to 1" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("reproduce", "fig9", "--attention", "lln_diag:target=bogus", "--steps", "1"), "bogus"),
        (("reproduce", "fig1", "--data", "nowhere/at/all", "--steps", "1"), "nowhere/at/all"),
        (("bench", "zoo", "--members", "bogus"), "no member 'bogus'"),
    ],
)
def test_mistakes_end_in_words_and_an_exit_code(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    result = runner.invoke(app, [*arguments, "--out", str(tmp_path / "out")], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and told in " ".join(result.output.split()), result.output
    assert "Traceback" not in result.output


def test_the_help_lists_every_command_in_order_with_one_line() -> None:
    text = runner.invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    listed = [line.split()[1] for line in text.splitlines() if line.startswith("│ ") and line[2].isalpha()]
    assert listed == list(SUMMARY)  # a line more would be listed, too
    assert all(" ".join(summary.split()[:4]) in text for summary in SUMMARY.values())


@pytest.mark.parametrize(("group", "summary"), [("bench", bench.SUMMARY), ("reproduce", reproduce.SUMMARY)])
def test_every_group_lists_its_commands_in_order_with_one_line(group: str, summary: dict[str, str]) -> None:
    text = runner.invoke(app, [group, "--help"], env={"COLUMNS": "80"}).output
    listed = [line for line in text.splitlines() if line.startswith("│ ") and not line.startswith("│ --")]
    assert [line.split()[1] for line in listed] == list(summary)
    assert all(one in line for one, line in zip(summary.values(), listed, strict=True))


# For each command something that it cannot work with, and what it must say of it.
WRONG: dict[tuple[str, ...], str] = {
    ("demo", "--longest", "1"): "--longest",
    ("info", "more"): "unexpected extra argument",
    ("look", "{nowhere}", "some text"): "there is no model at {nowhere}",
    ("convert", "{nowhere}", "--data", "{text}"): "there is no model at {nowhere}",
    ("convert", "{nowhere}", "--data", "{nowhere}"): "does not exist",
    ("distil", "{nowhere}", "--data", "{text}"): "{nowhere}",
    ("distil", "{nowhere}", "--data", "{text}", "--steps", "0"): "--steps",
    ("reproduce", "fig99"): "No such command 'fig99'",
    ("reproduce", "fig9", "--data", "{damaged}", "--steps", "1"): "is damaged",
    ("reproduce", "table3", "--data", "{damaged}", "--steps", "1"): "damaged",
    ("bench", "nothing"): "No such command 'nothing'",
    ("bench", "zoo", "--members", "bogus"): "bogus",
    ("report", "{nowhere}"): "does not exist",
    ("calibrate", "--head-dim", "64"): "two positive head sizes",
    ("calibrate", "--seeds", "0"): "--seeds",
    ("nothing",): "No such command 'nothing'",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_bad_input_ends_in_words_and_exit_code_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a text\n")
    for split in ("train", "test"):
        for kind in ("cats", "dogs"):
            (tmp_path / "pictures" / split / kind).mkdir(parents=True)
            (tmp_path / "pictures" / split / kind / "1.jpg").write_bytes(b"\xff\xd8 no picture")
    places = {"nowhere": tmp_path / "nowhere", "text": tmp_path / "text.txt", "damaged": tmp_path / "pictures"}
    given = [argument.format(**places) for argument in arguments]
    out = [] if arguments[0] in ("info", "nothing") or len(arguments) < 3 else ["--out", str(tmp_path / "out")]
    result = runner.invoke(app, [*given, *out], env={"COLUMNS": "250"})
    told = " ".join(result.output.split())
    assert result.exit_code == 2, result.output
    assert WRONG[arguments].format(**places) in told and "Traceback" not in told, result.output
