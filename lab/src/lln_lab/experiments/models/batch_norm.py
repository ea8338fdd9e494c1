"""Batch normalisation over the whole batch, however many processes share it.

    y = (x - mean) / sqrt(var + eps) * weight + bias,  mean and var over the samples of all processes

torch's SyncBatchNorm does this on GPUs only. The sums go through an all-reduce that knows its gradient, so that two processes
train as one does.
"""

from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor, nn


class BatchNorm(nn.BatchNorm1d):
    """x (B, features); every process has as many samples."""

    def forward(self, x: Tensor) -> Tensor:
        shared = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
        if not (self.training and shared):
            return super().forward(x)
        count = x.shape[0] * distributed.get_world_size()
        mean = _over_all(x.sum(0)) / count
        centred = x - mean
        variance = _over_all(centred.square().sum(0)) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1))
        return centred * torch.rsqrt(variance + self.eps) * self.weight + self.bias

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """The running estimates that evaluation uses, as torch keeps them."""
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)


class _SumOverProcesses(torch.autograd.Function):
    """sum_p x_p in every process; every process's loss has its part in the gradient of x, which is a sum again."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        total = x.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        total = gradient.clone()
        distributed.all_reduce(total)
        return total


def _over_all(x: Tensor) -> Tensor:
    total: Tensor = _SumOverProcesses.apply(x)  # type: ignore[no-untyped-call]
    return total
