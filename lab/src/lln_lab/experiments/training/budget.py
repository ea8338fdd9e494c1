"""How long and how a model trains: the same for every attention that is compared."""

from dataclasses import dataclass, replace
from typing import Literal

Precision = Literal["float32", "float16", "bfloat16"]
COUNTS = ("steps", "batch", "log_every", "accumulate", "loss_scale_window")


@dataclass(frozen=True)
class Budget:
    """`batch` counts samples of one optimiser step over all processes, however many there are.

    Each process computes its share in `accumulate` equal pieces, one after the other, and adds up their gradients: the step is
    the same, and only one piece has to fit into memory.
    """

    steps: int
    batch: int
    learning_rate: float
    warmup: int = 0
    schedule: Literal["linear", "cosine", "constant_with_warmup", "polynomial", "one_cycle"] = "linear"
    weight_decay: float = 0.01
    adam_beta2: float = 0.98
    adam_epsilon: float = 1e-8
    clip: float = 1.0  # the gradient's norm; 0: not at all
    clip_value: float = 0.0  # each number of the gradient; 0: not at all
    accumulate: int = 1
    checkpointing: bool = False  # layers are computed again in the backward pass instead of being remembered
    log_every: int = 10
    evaluate_every: int | None = None  # None: at the end only
    save_every: int | None = 100  # None: never
    watch_every: int | None = None  # steps between two looks at the attention; None: never
    precision: Precision = "float32"
    loss_scale: float = 65536.0  # float16: what the loss is multiplied by at the start
    loss_scale_window: int = 2000  # float16: steps without an overflow before the scale is doubled

    def __post_init__(self) -> None:
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.save_every is not None and self.save_every < 1:
            raise ValueError(f"save_every must be at least 1 or None, got {self.save_every}")
        if self.warmup >= self.steps and self.warmup > 0:
            raise ValueError(f"warmup must be shorter than the run, got {self.warmup} of {self.steps} steps")

    def at_once(self, processes: int = 1) -> int:
        """Samples that one process computes at a time."""
        pieces = processes * self.accumulate
        if self.batch % pieces:
            raise ValueError(
                f"a batch of {self.batch} cannot be split into {pieces} equal pieces "
                f"({processes} processes, accumulated {self.accumulate} times)"
            )
        return self.batch // pieces

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
            save_every=None if self.save_every is None else max(1, min(self.save_every, steps)),
            log_every=max(1, min(self.log_every, steps)),
        )
