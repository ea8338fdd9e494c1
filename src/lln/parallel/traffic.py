"""What a process sends, as torch's dispatcher sees it: every collective of torch.distributed, whoever calls it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SENT_FIRST = ("_allgather_base_", "alltoall_base_")  # (output, input, ...): what is sent comes second


class Sent(NamedTuple):
    """One collective."""

    collective: str
    dtype: torch.dtype
    numbers: int  # that this process gives
    bytes: int


class Traffic(TorchDispatchMode):
    """Lists, while it is entered, the collectives of this process; also those of a backward pass on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Sent] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::")
            given = args[1] if name in SENT_FIRST else args[0]
            tensors = [given] if isinstance(given, Tensor) else [t for t in given if isinstance(t, Tensor)]
            numbers = sum(t.numel() for t in tensors)
            self.sent.append(Sent(name, tensors[0].dtype, numbers, numbers * tensors[0].element_size()))
        return func(*args, **(kwargs or {}))

    @property
    def states(self) -> list[Sent]:
        """Those of floating-point numbers; the others say who calls what, on how many tokens."""
        return [s for s in self.sent if s.dtype.is_floating_point]
