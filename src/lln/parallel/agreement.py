"""All processes of a group must call the same thing: what would differ silently is compared, and told in words.

The first time that a kind of call is made, its description is gathered (`agree`): 12 whole numbers. Later calls of that
kind gather nothing. At the end of a context the order of all calls in it is compared once (`agree_on_history`), so that
two processes that have called known things in different orders do not go on with wrong results.
"""

import zlib
from typing import Any

import torch
from torch import Tensor

from lln.parallel.processes import Processes

FIELDS = (
    "operation", "batch", "query heads", "key heads", "head size", "value size", "dtype", "causal", "packed sequences",
    "block size", "starting state", "gradient",
)  # fmt: skip


def agree(
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
) -> None:
    """Raise on every process if one of them calls another operation, or the same on another kind of tensors."""
    value_dim = 0 if v is None else v.shape[3]
    call = (
        operation, q.shape[0], q.shape[1], k.shape[1], q.shape[3], value_dim, str(q.dtype), causal, sequences, block_size,
        start, needs_gradient,
    )  # fmt: skip
    processes.called.append(call)
    if call in processes.agreed:
        return
    mine = torch.tensor([_number(value) for value in call], device=q.device)
    everyone = processes.gather(mine).cpu()
    for name, value, column in zip(FIELDS, call, everyone.unbind(1), strict=True):
        others = [rank for rank in range(processes.size) if column[rank] != column[processes.rank]]
        if others or bool((column != column[0]).any()):
            theirs = [int(x) for x in column]
            raise ValueError(
                f"the processes that hold this sequence disagree about the {name}: here, on process {processes.rank}, it is "
                f"{value}; process{'es' if len(others) > 1 else ''} {', '.join(map(str, others))} "
                f"{'have' if len(others) > 1 else 'has'} {_read(name, value, [theirs[r] for r in others])}. "
                "All of them must make the same calls on tensors that differ in length alone"
            )
    processes.agreed.add(call)


def agree_on_history(processes: Processes, device: torch.device) -> None:
    """Raise if the processes have not made the same calls, in the same order, since the context was entered."""
    history = torch.tensor([len(processes.called), zlib.crc32(repr(processes.called).encode())], device=device)
    everyone = processes.gather(history).cpu()
    processes.called.clear()
    if bool((everyone != everyone[0]).any()):
        raise RuntimeError(
            "the processes that hold this sequence have not made the same calls in the same order, so what was computed in "
            f"this context is wrong: they made {', '.join(str(int(n)) for n in everyone[:, 0])} calls"
        )


def _number(value: Any) -> int:
    return zlib.crc32(value.encode()) if isinstance(value, str) else int(value)


def _read(name: str, own: Any, theirs: list[int]) -> str:
    if isinstance(own, str):  # known by a checksum alone, but there are few dtypes
        known = {zlib.crc32(str(d).encode()): str(d) for d in _DTYPES}
        return ", ".join(known.get(n, "another") for n in theirs)
    return ", ".join(str(bool(n)) if isinstance(own, bool) else str(n) for n in theirs)


_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
