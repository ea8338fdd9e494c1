"""Which batch each step of a distillation takes, and how large its steps are: functions of the step number alone.

Softmax runs once over a group of batches, whose activations are then gone through several times. Order depends on the seed and
the group's number only, so a resumed run goes on exactly as it would have.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

LAYERS, END_TO_END = "layers", "end_to_end"
STAGES = (LAYERS, END_TO_END, "both")


@dataclass(frozen=True)
class Plan:
    """steps: of this stage. group: batches whose teacher's activations are kept at once. passes: over each group."""

    steps: int
    batches: int
    group: int
    passes: int
    seed: int

    @property
    def group_steps(self) -> int:
        return min(self.group, self.batches) * self.passes

    def group_of(self, step: int) -> int:
        return step // self.group_steps

    def members(self, group: int) -> list[int]:
        """Numbers of the batches of a group: the data in a random order, epoch after epoch."""
        size = min(self.group, self.batches)
        found = []
        for at in range(group * size, (group + 1) * size):
            epoch, place = divmod(at, self.batches)
            found.append(int(self._shuffled(self.batches, epoch, stream=0)[place]))
        return found

    def member(self, step: int) -> int:
        """Which of its group's batches a step takes."""
        size = min(self.group, self.batches)
        group, within = divmod(step, self.group_steps)
        turn, place = divmod(within, size)
        return int(self._shuffled(size, group * self.passes + turn, stream=1)[place])

    def factor(self, step: int) -> float:
        """On the learning rate: a short warm-up, then half a cosine down to zero."""
        warm_up = min(1.0, (step + 1) / max(1, min(10, self.steps // 10)))
        return warm_up * 0.5 * (1 + math.cos(math.pi * step / self.steps))

    def _shuffled(self, size: int, number: int, stream: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed((self.seed * 2 + stream) * 1_000_003 + number)
        return torch.randperm(size, generator=generator)


def check_numbers(whole: dict[str, Any], rates: dict[str, Any]) -> None:
    """Refuse what is no whole number of at least 1, and learning rates that are not positive; a rate may be left out."""
    for name, value in whole.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    for name, value in rates.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, got {value!r}")


def split(steps: int, stage: str, end_to_end: int | None = None) -> dict[str, int]:
    """How many steps each stage gets; of both together, two thirds are end to end unless a number is given."""
    if stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(map(repr, STAGES))}, got {stage!r}")
    if stage != "both":
        return {stage: steps}
    end = 2 * steps // 3 if end_to_end is None else end_to_end
    if not 0 < end < steps:
        raise ValueError(f"stage='both' needs steps for either stage: of {steps}, {end} would be end to end")
    return {LAYERS: steps - end, END_TO_END: end}
