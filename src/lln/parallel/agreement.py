"""All processes of a group must make the same call; differences are detected and reported.

A description of every call, 12 integers, is gathered while the process does its own work. If descriptions differ, all
processes raise. With `context_parallel(check=False)`, and for groups that cannot communicate from the CPU and would have to
wait, only the first call of each kind is compared.
"""

import zlib
from typing import Any

import torch
from torch import Tensor

from lln.parallel.processes import Gathering, Processes

FIELDS = (
    "operation", "batch", "query heads", "key heads", "head size", "value size", "dtype", "causal", "packed sequences",
    "block size", "starting state", "gradient",
)  # fmt: skip
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Agreement:
    """Under way from the moment it is made; `settle` raises on every process if they do not agree."""

    def __init__(
        self,
        processes: Processes,
        operation: str,
        q: Tensor,
        k: Tensor,
        v: Tensor | None = None,
        *,
        causal: bool = False,
        sequences: int = 0,
        block_size: int = 0,
        start: bool = False,
        needs_gradient: bool = False,
        told: tuple[int, ...] = (),
    ) -> None:
        """told: whole numbers that the others are to know; with them, an exchange is made in any case."""
        value_dim = 0 if v is None else v.shape[3]
        self.call = (
            operation, q.shape[0], q.shape[1], k.shape[1], q.shape[3], value_dim, str(q.dtype), causal, sequences,
            block_size, start, needs_gradient,
        )  # fmt: skip
        self.processes = processes
        self._gathering: Gathering | None = None
        often = processes.checks and processes.speaks_from_cpu
        if told or often or self.call not in processes.agreed:
            device = "cpu" if processes.speaks_from_cpu else q.device
            mine = torch.tensor([*(_number(value) for value in self.call), *told], device=device)
            self._gathering = processes.begin_gather(mine)

    def settle(self) -> list[list[int]]:
        """What every process has told."""
        if self._gathering is None:
            return []
        everyone, told = self._gathering.wait().cpu().tensor_split([len(FIELDS)], dim=1)
        rank, size = self.processes.rank, self.processes.size
        for name, value, column in zip(FIELDS, self.call, everyone.unbind(1), strict=True):
            if bool((column == column[0]).all()):
                continue
            theirs = {r: int(column[r]) for r in range(size) if r != rank}
            raise ValueError(
                f"the processes that hold this sequence disagree about the {name}: it is {value} on process {rank}, "
                + ", ".join(f"{_read(value, number)} on process {r}" for r, number in theirs.items())
                + ". All of them must make the same calls, on tensors that differ in length alone"
            )
        self.processes.agreed.add(self.call)
        return [list(row) for row in told.tolist()]


def agree(*arguments: Any, **options: Any) -> list[list[int]]:
    """An `Agreement`, settled at once."""
    return Agreement(*arguments, **options).settle()


def _number(value: Any) -> int:
    return zlib.crc32(value.encode()) if isinstance(value, str) else int(value)


def _read(own: Any, number: int) -> str:
    if isinstance(own, str):  # known by a checksum alone, but there are few dtypes
        known = {_number(str(dtype)): str(dtype) for dtype in _DTYPES} | {_number(own): own}
        return known.get(number, "another")
    return str(bool(number)) if isinstance(own, bool) else str(number)
