"""The training loop of a distillation, whichever model learns: stage after stage, with checkpoints and an exact resume.

Everything a step does follows from its number (`lln.conversion.plan`), so a run can stop and go on anywhere.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from lln.conversion.checkpoint import load_checkpoint, save_checkpoint
from lln.conversion.plan import Plan

OnStep = Callable[[str, int, list[float]], None]
BETAS = (0.9, 0.99)


class Stage(Protocol):
    """What learns from what: each attention from the teacher's, or the model from the teacher's output."""

    @property
    def plan(self) -> Plan: ...
    @property
    def rate(self) -> float: ...

    def show(self, batches: list[Any]) -> list[Any]:
        """What the teacher does on the batches of a group, one by one; computed once for all passes over it."""
        ...

    def backward(self, shown: Any) -> list[float]:
        """Add up the gradients of a step; its errors."""
        ...


class Training:
    """One distillation of parameters, by their names in a checkpoint."""

    def __init__(
        self,
        batches: list[Any],
        parameters: dict[str, Tensor],
        settings: dict[str, Any],
        folder: Path | None = None,
        every: int = 25,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.batches, self.parameters, self.settings = batches, parameters, settings
        self.folder, self.every, self.after_step = folder, every, after_step

    def run(self, stages: dict[str, Stage], resume: bool, on_step: OnStep) -> None:
        """All stages one after the other, each with a fresh Adam; a checkpoint is of the stage it was written in."""
        optimizers = {name: torch.optim.Adam(list(self.parameters.values()), betas=BETAS) for name in stages}
        at_stage, at_step = next(iter(stages)), 0
        if self.folder is not None and resume:
            at_stage, at_step = self._resume(optimizers, at_stage)
        order = list(stages)
        for name in order[order.index(at_stage) :]:
            self._train(name, stages[name], optimizers[name], at_step if name == at_stage else 0, on_step)

    def _train(self, name: str, stage: Stage, optimizer: torch.optim.Adam, start: int, on_step: OnStep) -> None:
        plan = stage.plan
        group, shown = -1, list[Any]()
        for step in range(start, plan.steps):
            if group != plan.group_of(step):
                shown = []  # free the last group before making the next
                group = plan.group_of(step)
                shown = stage.show([self.batches[i] for i in plan.members(group)])
            for options in optimizer.param_groups:
                options["lr"] = stage.rate * plan.factor(step)
            optimizer.zero_grad()
            errors = stage.backward(shown[plan.member(step)])
            optimizer.step()
            self.after_step()
            on_step(name, step, errors)
            if self.folder is not None and ((step + 1) % self.every == 0 or step + 1 == plan.steps):
                reached = {"stage": name, "step": step + 1, "settings": self.settings}
                save_checkpoint(self.folder, self.parameters, optimizer, reached)

    def _resume(self, optimizers: dict[str, torch.optim.Adam], first: str) -> tuple[str, int]:
        assert self.folder is not None
        for stage, optimizer in optimizers.items():
            progress = load_checkpoint(self.folder, self.parameters, optimizer, self.settings)
            if progress is None:
                break
            if progress["stage"] == stage:
                return stage, int(progress["step"])
            optimizer.state.clear()
        return first, 0
