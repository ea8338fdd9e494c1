"""The training loop of a distillation: both stages, with checkpoints and an exact resume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lln.conversion.plan import LAYERS, Plan
from lln.hf.distillation.checkpoint import load_checkpoint, save_checkpoint
from lln.hf.distillation.losses import Batch, backward_of_layers, end_to_end_loss
from lln.hf.distillation.low_rank import LowRank
from lln.hf.distillation.teacher import Teacher
from lln.hf.modules import attention_modules

OnStep = Callable[[str, int, list[float]], None]
BETAS = (0.9, 0.99)
PRECISIONS = ("float32", "bfloat16")


class Training:
    """One distillation. Everything a step does follows from its number, so a run can stop and go on anywhere."""

    def __init__(
        self,
        model: Any,
        teacher: Any,
        batches: list[Batch],
        parameters: dict[str, Tensor],
        settings: dict[str, Any],
        folder: Path | None,
        every: int,
        updates: LowRank | None = None,
    ) -> None:
        self.model, self.teacher, self.batches = model, Teacher(teacher, updates), batches
        self.parameters, self.settings, self.folder, self.every = parameters, settings, folder, every
        self.pairs = _pairs(model, teacher)
        self.attention = model.config._attn_implementation
        self.kept: tuple[tuple[str, int] | None, list[Any]] = (None, [])  # which group, and what the teacher did there

    def run(self, stages: dict[str, int], rates: dict[str, float], resume: bool, on_step: OnStep) -> None:
        """All stages one after the other, each with a fresh Adam; a checkpoint is of the stage it was written in."""
        optimizers = {stage: torch.optim.Adam(list(self.parameters.values()), betas=BETAS) for stage in stages}
        at_stage, at_step = next(iter(stages)), 0
        if self.folder is not None and resume:
            at_stage, at_step = self._resume(optimizers, at_stage)
        order = list(stages)
        for stage in order[order.index(at_stage) :]:
            plan = self._plan(stage, stages[stage])
            start = at_step if stage == at_stage else 0
            for step in range(start, plan.steps):
                on_step(stage, step, self._step(stage, step, plan, optimizers[stage], rates[stage]))
                if self.folder is not None and ((step + 1) % self.every == 0 or step + 1 == plan.steps):
                    reached = {"stage": stage, "step": step + 1, "settings": self.settings}
                    save_checkpoint(self.folder, self.parameters, optimizers[stage], reached)

    def _plan(self, stage: str, steps: int) -> Plan:
        """End to end a step takes longer than the teacher's pass, so batches are gone through half as often."""
        passes = self.settings["passes"]
        passes = passes if stage == LAYERS else max(1, passes // 2)
        return Plan(steps, len(self.batches), self.settings["group"], passes, self.settings["seed"])

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

    def _step(self, stage: str, step: int, plan: Plan, optimizer: torch.optim.Adam, rate: float) -> list[float]:
        for options in optimizer.param_groups:
            options["lr"] = rate * plan.factor(step)
        optimizer.zero_grad()
        shown = self._group(stage, plan, plan.group_of(step))
        if stage == LAYERS:
            errors = backward_of_layers(shown[plan.member(step)], self.attention)
        else:
            one = shown[plan.member(step)]
            wanted = self.teacher.wanted(one)
            low = self.settings["precision"] == "bfloat16"
            with torch.autocast(self.model.device.type, torch.bfloat16, enabled=low):
                loss = end_to_end_loss(self.model, wanted, one.batch, one.others)
            loss.backward()  # type: ignore[no-untyped-call]
            errors = [float(loss.detach())]
        optimizer.step()
        self._keep_mixing_inside()
        return errors

    def _group(self, stage: str, plan: Plan, group: int) -> list[Any]:
        """What the teacher does on the batches of a group, computed once for all passes over it."""
        if self.kept[0] != (stage, group):
            self.kept = (None, [])  # free the last group before making the next
            chosen = [self.batches[i] for i in plan.members(group)]
            shown: list[Any]
            if stage == LAYERS:
                shown = [self.teacher.layers(self.pairs, batch) for batch in chosen]
            else:
                shown = self.teacher.outputs(chosen)
            self.kept = ((stage, group), shown)
        return self.kept[1]

    @torch.no_grad()
    def _keep_mixing_inside(self) -> None:
        for name, x in self.parameters.items():
            if name.endswith(".mix"):
                x.clamp_(0.0, 1.0)


def _pairs(model: Any, teacher: Any) -> dict[nn.Module, nn.Module]:
    own, followed = attention_modules(model), attention_modules(teacher)
    if len(own) != len(followed):
        raise ValueError(
            f"the teacher has {len(followed)} attention modules and the model {len(own)}: layers cannot be paired"
        )
    for t, m in zip(followed, own, strict=True):
        if _sizes(t) != _sizes(m):
            raise ValueError(
                f"an attention of the teacher has projections of {_sizes(t)} and the model's of {_sizes(m)}: the teacher must "
                "have the model's heads and width"
            )
    return {t: m for t, m in zip(followed, own, strict=True) if getattr(m, "lln", None) is not None}


def _sizes(module: Any) -> list[tuple[int, ...]]:
    """Of the projections and, where the module says so, of the heads."""
    heads = [
        (h,) for n in ("num_heads", "num_attention_heads", "head_dim") if (h := getattr(module, n, None)) is not None
    ]
    return [
        tuple(x.shape) for name, x in module.named_parameters() if "lln." not in name and "lora_" not in name
    ] + heads
