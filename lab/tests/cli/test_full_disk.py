"""Full disks end in words, and every command of the laboratory is among those that look at --out first."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers.implementations import ByteLevelBPETokenizer

from lln.results import write_result
from tests.cli.test_nothing_is_lost import WRITING, run, words

NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "error",
    [
        NO_ROOM,
        Exception("No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 10880 vs 10772"),
    ],
    ids=["plain", "tokenizers", "torch.save"],
)
def test_a_full_disk_in_the_demo_ends_in_words(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its libraries report it, at its first write."""

    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(ByteLevelBPETokenizer, "save_model", full)
    result = run("demo", "--steps", "1", "--longest", "256", "--out", str(tmp_path / "demo"))
    assert result.exit_code == 2 and "the disk is full" in words(result) and "--out" in words(result)


def test_a_report_that_finds_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_result(tmp_path / "runs" / "a.json", {"rows": [1]})
    write = Path.write_text

    def full(self: Path, text: str, **more: Any) -> int:
        write(self, text[: len(text) // 2], **more)
        raise NO_ROOM

    monkeypatch.setattr(Path, "write_text", full)
    result = run("report", str(tmp_path / "runs"), "--out", str(tmp_path / "report.html"))
    assert result.exit_code == 2 and "the disk is full" in words(result)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_the_laboratorys_commands_are_asked_where_they_write() -> None:
    """`tests/cli/test_nothing_is_lost.py` tries each of them."""
    assert {"demo", "bench", "reproduce", "report"} <= {path[0] for path, _ in WRITING}
    assert len(WRITING) >= 27
