"""What the documentation shows runs: its Python and its commands. What it names is there: modules, names in them, files."""

import importlib
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

# What a page takes for granted, before its Python block of that number: a tiny random model, texts, a trainer.
_TINY = "hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, vocab_size=8"
_TEXTS = f"""
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, BertConfig, PreTrainedTokenizerFast
words = Tokenizer(models.WordLevel({{"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3, "c": 4}}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
texts = ["a b c " * n for n in range(2, 12)]
model, folder = AutoModel.from_config(BertConfig({_TINY})).eval(), "converted"
"""
_FEW_STEPS = """
import lln.hf
whole = lln.hf.distil
lln.hf.distil = lambda *given, **options: whole(*given, **{**options, "steps": 4, "progress": False})
"""
_CAUSAL = f"""
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
config = LlamaConfig({_TINY})
config.lln = {{"alpha": 1.0, "beta": 1.0}}
model = AutoModelForCausalLM.from_config(config, attn_implementation="lln_diag").eval()
ids = torch.randint(8, (1, 40))
"""
_TRAINER = f"""
from transformers import AutoModel, BertConfig, Trainer, TrainingArguments
trainer = Trainer(AutoModel.from_config(BertConfig({_TINY})), TrainingArguments("trained", report_to=[]))
"""
TAKEN_FOR_GRANTED = {
    ("docs/hf.md", 1): _CAUSAL,
    ("docs/hf.md", 2): _TEXTS,
    ("docs/distil.md", 0): _TEXTS + _FEW_STEPS,
    ("docs/instruments.md", 2): _TRAINER,
}
PAGES = [Path("README.md"), *sorted(p.relative_to(ROOT) for p in (ROOT / "docs").rglob("*.md"))]


def fences(path: Path) -> list[tuple[str, str]]:
    """The language and the content of every fenced block of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / path).read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_the_python_in_the_docs_runs(path: Path, tmp_path: Path) -> None:
    blocks = [content for language, content in fences(path) if language == "python"]
    if not blocks:
        pytest.skip(f"{path} has no Python in it")
    script = tmp_path / "script.py"
    script.write_text("\n".join(TAKEN_FOR_GRANTED.get((str(path), i), "") + block for i, block in enumerate(blocks)))
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path, env=one_thread
    )
    assert done.returncode == 0, f"{path}:\n{done.stderr}"


def test_what_is_taken_for_granted_is_before_a_block_of_its_page() -> None:
    for path, number in TAKEN_FOR_GRANTED:
        assert number < sum(language == "python" for language, _ in fences(Path(path))), (path, number)


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
        if Path(word).suffix in (".jsonl", ".txt"):
            Path(word).touch()  # data that a command asks to be there
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
