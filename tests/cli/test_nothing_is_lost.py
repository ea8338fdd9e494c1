"""Places that cannot be written are refused before the work, by every command there is; damaged files end in words."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from lln_cli.app import app

runner = CliRunner()


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))
    else:
        yield path, command


WRITING = [
    (path, option.opts[-1] if "--out" not in option.opts else "--out")
    for path, command in leaves(typer.main.get_command(app))
    for option in command.params
    if option.name in ("out", "result")
]


def run(*arguments: str) -> Any:
    result = runner.invoke(app, arguments, env={"COLUMNS": "200", "HF_HUB_OFFLINE": "1"})
    assert "Traceback" not in result.output, result.output
    return result


def words(result: Any) -> str:
    return " ".join(result.output.replace("│", " ").split())


def test_every_command_that_writes_is_asked() -> None:
    assert {"convert", "distil", "calibrate"} <= {path[0] for path, _ in WRITING}


@pytest.mark.parametrize(("path", "option"), WRITING, ids=lambda x: "-".join(x) if isinstance(x, tuple) else x)
def test_what_cannot_be_written_is_refused_before_the_work(path: tuple[str, ...], option: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    given = {
        "convert": ["model", "--data", str(tmp_path / "file")],
        "distil": ["model", "--data", str(tmp_path / "file")],
        "report": [str(tmp_path)],
    }.get(path[0], [])
    result = run(*path, *given, option, str(tmp_path / "file" / "deeper" / "out"))
    assert result.exit_code == 2
    assert option in words(result) and "nothing can be written to" in words(result) and "is a file" in words(result)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    words_of_it = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    (folder / "vocab.txt").write_text("\n".join(words_of_it))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        max_position_embeddings=16,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scribble(path: Path) -> None:
    path.write_bytes(b"\x05\0\0\0\0\0\0\0rubbish" * 3)


@pytest.mark.parametrize("command", ["convert", "distil"])
@pytest.mark.parametrize("damage", [cut, scribble])
@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_model_ends_in_words(command: str, damage: Any, file: str, model: Path, tmp_path: Path) -> None:
    folder, texts = tmp_path / "model", tmp_path / "texts.txt"
    shutil.copytree(model, folder)
    texts.write_text("a b a b\n" * 8)
    damage(folder / file)
    result = run(command, str(folder), "--data", str(texts), "--out", str(tmp_path / "out"))
    assert result.exit_code == 2 and "error:" in words(result), result.output
    if file == "model.safetensors":
        assert str(folder) in words(result) and "cannot be read as a pretrained model" in words(result)
