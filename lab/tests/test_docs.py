"""What the documentation shows runs, each block by itself: Python and commands. What it names exists: modules, names, files."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from lln_cli.app import app

ROOT = Path(__file__).parents[2]

PAGES = [Path("README.md"), *sorted(p.relative_to(ROOT) for p in (ROOT / "docs").rglob("*.md"))]


def fences(path: Path) -> list[tuple[str, str]]:
    """The language and the content of every fenced block of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / path).read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """ "page number" -> what went wrong, or nothing: every Python block in a namespace and a folder of its own.

    One process imports what takes long, none of it ours, and forks for each block, which has nothing of the blocks before it.
    """
    folder = tmp_path_factory.mktemp("blocks")
    blocks = {
        f"{path} {number}": content
        for path in PAGES
        for number, content in enumerate(content for language, content in fences(path) if language == "python")
    }
    (folder / "blocks.json").write_text(json.dumps(blocks))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH_ALONE], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads((folder / "outcomes.json").read_text()))


RUN_EACH_ALONE = """
import json, os, sys, tempfile, traceback
import torch
import transformers.models.auto.modeling_auto, transformers.models.bert.modeling_bert, transformers.trainer
blocks, outcomes = json.load(open("blocks.json")), {}
for name, block in blocks.items():
    folder = tempfile.mkdtemp(dir=".")
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        sys.stdout = open(os.devnull, "w")
        try:
            exec(compile(block, name, "exec"), {"__name__": "__main__"})
        except BaseException:
            open("wrong", "w").write(traceback.format_exc())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    wrong = os.path.join(folder, "wrong")
    outcomes[name] = open(wrong).read() if os.path.exists(wrong) else f"it ended with status {status}" if status else ""
json.dump(outcomes, open("outcomes.json", "w"))
"""


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_every_python_block_of_the_docs_runs_by_itself(path: Path, outcomes: dict[str, str]) -> None:
    own = {name: wrong for name, wrong in outcomes.items() if name.rpartition(" ")[0] == str(path)}
    if not own:
        pytest.skip(f"{path} has no Python in it")
    for name, wrong in own.items():
        assert not wrong, f"block {name}:\n{wrong}"


def _commands_in_the_docs() -> list[str]:
    """Arguments of every line that calls `lln`, also through a launcher of modules."""
    lines = [
        line for path in PAGES for language, text in fences(path) if language != "python" for line in text.splitlines()
    ]
    found = (re.match(r"(?:lln|.* -m lln_cli) (.*)", line) for line in lines)
    return [call[1] for call in found if call is not None]


@pytest.mark.parametrize("line", _commands_in_the_docs())
def test_the_commands_in_the_docs_are_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command: Any = typer.main.get_command(app)
    words = shlex.split(line, comments=True)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"lln {line}: choose from {', '.join(command.commands)}"
        command = command.commands[words.pop(0)]
    for word in words:
        if Path(word).suffix in (".jsonl", ".txt", ".json"):  # what a command asks to be there
            Path(word).parent.mkdir(parents=True, exist_ok=True)
            Path(word).touch()
    command.make_context("lln", words)


NAMED_PAGES = [*PAGES, Path("CONTRIBUTING.md"), Path("lab/README.md")]
NO_MODULES = ("lln.commands",)  # a group of entry points


def _named(page: Path, pattern: str) -> list[str]:
    """What stands between backticks, outside of fenced blocks, and begins with the pattern."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    quoted = re.findall(r"`([^`\n]+)`", text)
    return sorted({found[0] for found in (re.search(pattern, quote) for quote in quoted) if found})


@pytest.mark.parametrize("page", NAMED_PAGES, ids=str)
def test_modules_and_names_in_the_docs_are_there(page: Path) -> None:
    for name in _named(page, r"(?:^|(?<= ))lln(?:_cli|_lab)?(?:\.\w+)+"):
        if name in NO_MODULES:
            continue
        module, attributes = name, list[str]()
        while True:
            try:
                found: Any = importlib.import_module(module)
                break
            except ModuleNotFoundError:
                module, _, last = module.rpartition(".")
                assert module, f"{page} names {name}, which is not there"
                attributes.insert(0, last)
        for attribute in attributes:
            assert hasattr(found, attribute), f"{page} names {name}, which is not there"
            found = getattr(found, attribute)


@pytest.mark.parametrize("page", NAMED_PAGES, ids=str)
def test_files_in_the_docs_are_there(page: Path) -> None:
    for name in _named(page, r"^(?:src|tests|lab|docs|tools|examples)/[\w./-]+"):
        place = (ROOT / name).parent if "NAME" in name else ROOT / name  # a file that somebody is going to write
        assert place.exists(), f"{page} names {name}, which is not there"
