"""How long and how a model trains: the same for every attention that is compared."""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Budget:
    """`batch` counts samples of one optimiser step over all processes, however many there are."""

    steps: int
    batch: int
    learning_rate: float
    warmup: int = 0
    schedule: Literal["linear", "cosine", "constant_with_warmup", "polynomial"] = "linear"
    weight_decay: float = 0.01
    adam_beta2: float = 0.98
    clip: float = 1.0
    log_every: int = 10
    evaluate_every: int | None = None  # None: at the end only
    save_every: int = 100
    watch_every: int | None = None  # steps between two looks at the attention; None: never
    precision: Literal["float32", "float16", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "log_every", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.warmup >= self.steps and self.warmup > 0:
            raise ValueError(f"warmup must be shorter than the run, got {self.warmup} of {self.steps} steps")

    def shortened(self, steps: int | None) -> "Budget":
        """The same over another number of steps; warm-up and evaluations keep their share. None changes nothing."""
        if steps is None:
            return self
        share, every = steps / self.steps, self.evaluate_every
        return replace(
            self,
            steps=steps,
            warmup=min(int(self.warmup * share), steps - 1),
            evaluate_every=None if every is None else max(1, int(every * share)),
            save_every=max(1, min(self.save_every, steps)),
            log_every=max(1, min(self.log_every, steps)),
        )
