"""A `transformers.TrainerCallback` that watches attention while a Trainer trains: to its logs, and to disk.

    trainer = Trainer(...)
    ProbeCallback(every=50, path="attention.csv").add_to(trainer)

Reporters (tensorboard, trackio, ...) get the mean over the heads of each layer and measure, as attention/<layer>/<measure>;
the CSV file has every head. A Trainer asks its reporters before the callbacks it was given: `add_to` puts this one in front,
where what it adds to a log is still seen. Passed as `callbacks=[...]` it only writes to disk.
"""

from pathlib import Path
from typing import Any

try:
    from transformers import TrainerCallback
except ImportError as missing:
    raise ImportError("ProbeCallback needs transformers: pip install 'lln-attention[hf]'") from missing

from lln.instruments.probe import Probe


class ProbeCallback(TrainerCallback):  # type: ignore[misc]
    """Watches one forward pass at every `every`-th optimiser step; further options are those of `Probe`."""

    def __init__(self, every: int = 50, path: str | Path | None = None, **options: Any) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every}")
        self.every = every
        self.probe: Probe | None = None
        self._options = {**options, "path": path, "every": None}
        self._reported = 0
        self._due = False

    def add_to(self, trainer: Any) -> "ProbeCallback":
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.probe = Probe(model, **self._options).attach()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._due = self.probe is not None and state.global_step % self.every == 0
        if self.probe is not None and self._due and state.is_world_process_zero:
            self.probe.arm(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._due:  # of all processes, though only one looked: a log is a collective operation
            control.should_log = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Add the newest means to what the Trainer is about to report."""
        if self.probe is None or logs is None:
            return
        fresh = self.probe.table.rows[self._reported :]
        self._reported = len(self.probe.table.rows)
        if fresh:
            logs.update(layer_means(fresh))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.probe is not None:
            self.probe.detach()


def layer_means(rows: list[dict[str, Any]]) -> dict[str, float]:
    """attention/<layer>/<measure> -> the mean over heads, of the newest step among the rows."""
    newest = [row for row in rows if row["step"] == rows[-1]["step"]]
    means: dict[str, list[float]] = {}
    for row in newest:
        for name, value in row.items():
            if isinstance(value, float):
                means.setdefault(f"attention/{row['layer']}/{name}", []).append(value)
    return {name: sum(values) / len(values) for name, values in means.items()}
