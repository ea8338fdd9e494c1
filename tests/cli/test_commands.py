"""The command line as a user types it."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lln_cli.app import GROUP, OF_THE_LAB, app, build

runner = CliRunner()


def invoke(*arguments: str) -> str:
    result = runner.invoke(app, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.output


def test_info_says_what_works_and_what_is_calibrated() -> None:
    text = invoke("info")
    for expected in ("lln-attention", "torch", "native", "chunked", "oracle", "head size", "entropy", "variance"):
        assert expected in text


@pytest.mark.parametrize("command", [("--help",), ("convert", "--help"), ("calibrate", "--help")])
def test_help_helps(command: tuple[str, ...]) -> None:
    assert "Usage" in invoke(*command)


def test_a_wrong_option_is_refused_with_what_fits() -> None:
    result = runner.invoke(app, ["calibrate", "--seeds", "0"], env={"COLUMNS": "120"})
    assert result.exit_code == 2 and "--seeds" in result.output and "greater than or equal to 1" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("convert", "nowhere/at/all", "--data", "TEXTS"), "nowhere/at/all"),
        (("distil", "nowhere/at/all", "--data", "TEXTS", "--classify", "5"), "no field 'label'"),
    ],
)
def test_mistakes_end_in_words_and_an_exit_code(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "a b c"}\n')
    given = [str(texts) if x == "TEXTS" else x for x in arguments]
    result = runner.invoke(app, [*given, "--out", str(tmp_path / "out")], env={"COLUMNS": "200", "HF_HUB_OFFLINE": "1"})
    assert result.exit_code == 2 and told in " ".join(result.output.split()), result.output
    assert "Traceback" not in result.output
    with pytest.raises((ValueError, OSError)):
        runner.invoke(app, [*given, "--out", str(tmp_path / "out")], env={"LLN_TRACEBACK": "1"}, catch_exceptions=False)


def without_entry_points(monkeypatch: pytest.MonkeyPatch, *others: metadata.EntryPoint) -> typer.Typer:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [x for x in others if x.group == group])
    return build()


@pytest.mark.parametrize("given", [(), ("--help",), ("--steps", "3"), ("zoo", "--out", "x")], ids=str)
@pytest.mark.parametrize("name", OF_THE_LAB)
def test_without_the_laboratory_its_commands_say_what_to_install(
    name: str, given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = runner.invoke(without_entry_points(monkeypatch), [name, *given], env={"COLUMNS": "120"})
    assert result.exit_code == 2 and f"`lln {name}`" in result.output and "pip install lln-lab" in result.output


def test_without_the_laboratory_its_commands_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = runner.invoke(without_entry_points(monkeypatch), ["--help"], env={"COLUMNS": "120"}).output
    listed = {line.split()[1] for line in text.splitlines() if line.startswith("│ ") and line[2] != " "}
    assert {"info", "convert", "distil", "calibrate"} <= listed and not listed & set(OF_THE_LAB)


def test_any_package_may_add_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = metadata.EntryPoint("platform", "platform:python_version", GROUP)
    monkeypatch.setattr("platform.python_version", lambda: typer.echo("ran"))
    result = runner.invoke(without_entry_points(monkeypatch, entry), ["platform"])
    assert result.exit_code == 0 and "ran" in result.output


def test_a_command_that_cannot_be_loaded_takes_no_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = without_entry_points(monkeypatch, metadata.EntryPoint("demo", "not_there:demo", GROUP))
    assert runner.invoke(broken, ["--help"]).exit_code == 0
    result = runner.invoke(broken, ["demo"], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and "not_there" in result.output and "cannot be loaded" in result.output


@pytest.mark.parametrize("option", ["--help", "--version", "convert --help", "demo --help"])
def test_help_and_version_do_not_import_torch(option: str) -> None:
    script = f"""
import sys
import lln_cli
sys.argv = ["lln", *{option.split()!r}]
try:
    lln_cli.main()
except SystemExit:
    pass
heavy = {{"torch", "numpy", "lln", "transformers", "matplotlib"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_version_is_the_installed_one() -> None:
    assert f"lln-attention {metadata.version('lln-attention')}" in invoke("--version")
