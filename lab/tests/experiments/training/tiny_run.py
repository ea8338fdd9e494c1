"""A run small enough to be killed and repeated: python -m lab.tests.experiments.training.tiny_run FOLDER [kill-in-save N]

With `kill-in-save N` the process sends itself SIGKILL in the middle of saving checkpoint N: weights are written, the
optimiser's state is not.
"""

import atexit
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from lln_lab.experiments.masking import Masking, tokenizer_of, windows
from lln_lab.experiments.models.roberta import MaskedLanguageModel, Size, configuration
from lln_lab.experiments.training import Budget, Run, checkpoints, train
from lln_lab.experiments.training.run import processes

SIZE = Size(layers=2, width=32, heads=2, feed_forward=64, length=32, dropout=0.1)
BUDGET = Budget(
    steps=12, batch=4, learning_rate=1e-3, warmup=2, log_every=3, evaluate_every=6, save_every=3, watch_every=4
)
TEXTS = [f"document {i}: {' '.join(str((i * j) % 17) for j in range(40))}\n" for i in range(20)]


def start(folder: Path, attention: str = "lln_diag", dropout: float = SIZE.dropout) -> dict[str, Any]:
    torch.set_num_threads(1)
    with processes().main_process_first():
        tokenizer = tokenizer_of(TEXTS, folder / "tokenizer", 300)
    rows, masking = windows(TEXTS, tokenizer, SIZE.length), Masking(tokenizer)
    config = configuration(Size(**{**vars(SIZE), "dropout": dropout}), masking.vocabulary)
    run = Run("mlm", attention, 0, BUDGET)
    build = lambda: MaskedLanguageModel(config, attention)  # noqa: E731
    return train(run, folder / run.name, build, rows[8:], rows[:8], masking)


def kill_in_save(number: int) -> None:
    saved = checkpoints.CheckpointedTrainer._save_optimizer_and_scheduler

    def killed(self: Any, output_dir: str) -> None:
        if output_dir.endswith(f"checkpoint-{number}"):
            assert (Path(output_dir) / "model.safetensors").exists()
            os.kill(os.getpid(), signal.SIGKILL)
        saved(self, output_dir)

    checkpoints.CheckpointedTrainer._save_optimizer_and_scheduler = killed  # type: ignore[method-assign]


def tell_at_exit(folder: Path) -> None:
    """Write whether the process group is still there when Python shuts down."""
    told = folder / f"group-{os.environ.get('RANK', '0')}"
    atexit.register(lambda: told.write_text("there" if torch.distributed.is_initialized() else "left"))


if __name__ == "__main__":
    tell_at_exit(Path(sys.argv[1]))  # what is registered first runs last
    if sys.argv[2:3] == ["kill-in-save"]:
        kill_in_save(int(sys.argv[3]))
    dropout = float(sys.argv[3]) if sys.argv[2:3] == ["dropout"] else SIZE.dropout
    start(Path(sys.argv[1]), dropout=dropout)
