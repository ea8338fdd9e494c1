"""Hugging Face's Trainer with what the paper's recipes need beyond it.

float16     a loss scale that starts and grows as the budget says, on a GPU or on the CPU
clip_value  every number of the gradient is clipped, as Skyformer's recipe does
one_cycle   torch's OneCycleLR: the rate rises in a line from a 25th, and falls in a line to almost nothing; Adam's first beta
            goes the other way, between 0.95 and 0.85
"""

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from lln_lab.experiments.training.budget import Budget
from lln_lab.experiments.training.checkpoints import CheckpointedTrainer


class BudgetTrainer(CheckpointedTrainer):
    """Trains as a `Budget` says."""

    def __init__(self, budget: Budget, **more: Any) -> None:
        self.budget = budget
        super().__init__(**more)

    def create_accelerator_and_postprocess(self) -> None:
        """accelerate scales losses on GPUs only; torch's scaler and autocast know float16 on the CPU as well."""
        super().create_accelerator_and_postprocess()
        if self.budget.precision == "float16":
            self.accelerator.native_amp = True
            self.accelerator.scaler = torch.amp.GradScaler(
                self.accelerator.device.type,
                init_scale=self.budget.loss_scale,
                growth_interval=self.budget.loss_scale_window,
            )

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        if self.budget.schedule == "one_cycle" and self.lr_scheduler is None:
            self.lr_scheduler = OneCycleLR(  # type: ignore[assignment]
                optimizer or self.optimizer,  # type: ignore[arg-type]
                max_lr=self.budget.learning_rate,
                total_steps=num_training_steps,
                pct_start=self.budget.warmup / num_training_steps,
                anneal_strategy="linear",
            )
        return super().create_scheduler(num_training_steps, optimizer)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm as it is before single numbers are clipped. Trainer calls this between backward and the optimiser's step."""
        norm = super()._get_grad_norm(model, grad_norm)
        if self.budget.clip_value > 0:
            nn.utils.clip_grad_value_(model.parameters(), self.budget.clip_value)
        return norm
