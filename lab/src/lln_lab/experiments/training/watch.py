"""What is seen of a run while it trains: a line of progress, the attention's concentration, the loss scale of float16."""

import math
import time
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import TrainerCallback

from lln.instruments.trainer import ProbeCallback

KEPT = ("temperature", "lln_temperature", "entropy", "gap", "alpha", "beta")
Look = Callable[[nn.Module, dict[str, Any]], Any]  # (model, a validation batch) -> something for JSON
OnStep = Callable[[int, int, float | None], None]  # step, of how many, newest loss


class Progress(TrainerCallback):  # type: ignore[misc]
    """Tells somebody how far the run is."""

    def __init__(self, on_step: OnStep) -> None:
        self.on_step, self._loss = on_step, None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.on_step(state.global_step, state.max_steps, self._loss)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self._loss = (logs or {}).get("loss", self._loss)


class StepTimes(TrainerCallback):  # type: ignore[misc]
    """Seconds that each optimiser step of this process took, by the clock and of processor time.

    On a busy machine only the second says something.
    """

    def __init__(self) -> None:
        self.clock: list[float] = []
        self.processor: list[float] = []
        self._begun = 0.0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begun = time.perf_counter(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        clock, processor = self._begun
        self.clock.append(time.perf_counter() - clock)
        self.processor.append(time.process_time() - processor)


class Concentration(ProbeCallback):
    """Temperature, entropy and spectral gap of every layer, kept in the run's history (and so in its checkpoints).

    They are entries of their own. A log of the Trainer at these steps would cut the loss, which it logs as the mean since the
    log before, into a stretch of one batch and the rest: a saw-tooth.
    """

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        seen: dict[str, Any] = {}
        self.on_log(args, state, control, seen)
        kept = {name: x for name, x in seen.items() if name.split("/")[-1] in KEPT and math.isfinite(x)}
        if kept:
            state.log_history.append({"step": state.global_step, **kept})


class LossScale(TrainerCallback):  # type: ignore[misc]
    """The inverse loss scale of float16 (Figures 8b and 10b): it rises when gradients overflow."""

    def __init__(self) -> None:
        self.scaler: Any = None

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self.scaler is not None and self.scaler.is_enabled() and state.log_history:
            state.log_history[-1]["inverse_loss_scale"] = 1.0 / self.scaler.get_scale()


class Looks(TrainerCallback):  # type: ignore[misc]
    """Notes something of the model before the first step and after every `every`-th, in the run's history."""

    def __init__(self, every: int, look: Look, batch: dict[str, Any]) -> None:
        self.every, self.look, self.batch = every, look, batch

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step == 0:
            self._note(state, model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step % self.every == 0:
            self._note(state, model)

    def _note(self, state: Any, model: nn.Module) -> None:
        state.log_history.append({"step": state.global_step, "look": self.look(model, self.batch)})
