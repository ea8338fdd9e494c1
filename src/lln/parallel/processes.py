"""The processes that hold one sequence, in order, and their communication.

Everything is gathered and then added in rank order, so results are bit-identical on every process and from run to run. A
process that dies or disagrees is reported within the timeout of torch's process group.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

GroupLike = dist.ProcessGroup | DeviceMesh


class Processes:
    """A process group whose rank r holds the r-th stretch of a sequence."""

    def __init__(self, group: GroupLike) -> None:
        self.group = _process_group(group)
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.speaks_from_cpu = _has_backend(self.group, "cpu")
        self.checks = True  # whether every call is compared with those of the others (`lln.parallel.agreement`)
        self.agreed: set[tuple[Any, ...]] = set()  # what all of them have called so far

    def gather(self, x: Tensor) -> Tensor:
        """(P, *x.shape): x of every process; all have one shape and dtype."""
        return self.begin_gather(x).wait()

    def begin_gather(self, x: Tensor) -> "Gathering":
        """The same, but local work may be done before `wait`."""
        x = x.contiguous()
        out = x.new_empty(self.size, *x.shape)
        return Gathering(out, self._call(_gather_into, out.view(-1), x.view(-1), self.group))

    def add(self, x: Tensor) -> Tensor:
        """The sum over processes of numbers whose sum does not depend on the order: whole ones, or one that is not zero."""
        total = x.contiguous().clone()
        return Gathering(total, self._call(dist.all_reduce, total, group=self.group, async_op=True)).wait()

    def send_rows(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Consecutive rows go to each process, `sent[r]` of them to process r; what came, `received[r]` from process r."""
        rows = rows.contiguous()
        out = rows.new_empty(sum(received), *rows.shape[1:])
        work = self._call(dist.all_to_all_single, out, rows, list(received), list(sent), self.group, async_op=True)
        return Gathering(out, work).wait()

    def _call(self, collective: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return collective(*arguments, **options)
        except RuntimeError as error:
            raise _in_words(error) from error


class Gathering:
    """A collective that is under way."""

    def __init__(self, out: Tensor, work: Any) -> None:
        self._out, self._work = out, work

    def wait(self) -> Tensor:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise _in_words(error) from error
        return self._out


def _gather_into(out: Tensor, x: Tensor, group: dist.ProcessGroup) -> Any:
    # all_gather_into_tensor was renamed in torch 2.13
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(out, x, group, async_op=True)


def _process_group(group: GroupLike) -> dist.ProcessGroup:
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f"a sequence is cut along one dimension of a mesh, this one has {group.ndim}: {group.mesh_dim_names}. "
                "Pass mesh['name'] of the dimension that holds the sequence"
            )
        return group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"a group is a ProcessGroup or a dimension of a DeviceMesh, got {type(group).__name__}")
    return group


def _has_backend(group: dist.ProcessGroup, device: str) -> bool:
    try:
        group._get_backend(torch.device(device))
    except RuntimeError:
        return False
    return True


def _in_words(error: RuntimeError) -> RuntimeError:
    return RuntimeError(
        "the processes that hold this sequence could not exchange what they have: one of them has ended, is late by more than "
        "the process group's timeout, or has called something else (another function, shape or dtype). Look at the first "
        f"error of the others. torch says: {error}"
    )
