"""A Trainer whose checkpoints are there whole or not at all.

A checkpoint is written aside, in `.saving`, brought to the disk (fsync), and renamed to `checkpoint-N`: whoever is killed
while saving leaves no half checkpoint that a resume would take for a whole one.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as distributed
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints

ASIDE = ".saving"


class CheckpointedTrainer(Trainer):  # type: ignore[misc]
    """Keeps the newest two checkpoints."""

    _aside: str | None = None

    def _get_output_dir(self, trial: Any) -> str:
        return self._aside or super()._get_output_dir(trial)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(str(self.args.output_dir))
        aside = folder / ASIDE
        if self.is_world_process_zero():
            shutil.rmtree(aside, ignore_errors=True)
        _wait_for_all()
        self._aside = str(aside)
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._aside = None
        _wait_for_all()
        if self.is_world_process_zero():
            _publish(aside, folder)
            rotate_checkpoints(output_dir=str(folder), save_total_limit=2)
        _wait_for_all()


def newest(folder: Path) -> str | None:
    """The newest complete checkpoint, or None."""
    return get_last_checkpoint(str(folder)) if folder.is_dir() else None


def _publish(aside: Path, folder: Path) -> None:
    for written in aside.iterdir():
        for path in [*written.rglob("*"), written]:
            _sync(path)
        final = folder / written.name
        shutil.rmtree(final, ignore_errors=True)  # only a resume that repeats the same step meets one
        written.rename(final)
    aside.rmdir()
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _wait_for_all() -> None:
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
