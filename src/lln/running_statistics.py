"""Running statistics of q and k, as buffers that are used first and updated after (see `lln.moment_matcher`).

Use and update are one torch operator: whether this is a recomputation inside a backward pass, and whether other
processes take part, is only known when it runs, so a compiled graph must not decide it while it is traced.
"""

from collections.abc import Callable

import torch
import torch.distributed
from torch import Tensor, nn

from lln.statistics import Statistics, accumulation_dtype


class RunningStatistics(nn.Module):
    """Mean and variance of q and k per key head. Before any batch: variance 1, mean 0, that is T = 1."""

    mean_q: Tensor
    var_q: Tensor
    mean_key: Tensor
    var_k: Tensor
    batches: Tensor
    in_use: Tensor

    def __init__(self, key_heads: int, head_dim: int, momentum: float, about_mean_key: bool) -> None:
        super().__init__()
        self.momentum, self.about_mean_key = momentum, about_mean_key
        self.register_buffer("mean_q", torch.zeros(key_heads))
        self.register_buffer("var_q", torch.ones(key_heads))
        self.register_buffer("mean_key", torch.zeros(key_heads, head_dim))
        self.register_buffer("var_k", torch.ones(key_heads))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        # what the last forward pass used, for gradient checkpointing: mean_q, var_q, var_k, mean_key side by side
        self.register_buffer("in_use", torch.zeros(key_heads, 3 + head_dim), persistent=False)

    def current(self, length: int) -> Statistics:
        """The statistics as they stand, as those of one sample of `length` keys."""
        packed = torch.cat([self.mean_q[:, None], self.var_q[:, None], self.var_k[:, None], self.mean_key], dim=1)
        return _unpack(packed, length)

    def use_and_update(self, batch: Statistics, length: int) -> Statistics:
        """What stood before this batch; afterwards the batch is folded in."""
        weight = batch.keys / batch.keys.sum().clamp_min(1)  # samples count by their tokens
        packed = _use_and_update(
            self.mean_q, self.var_q, self.mean_key, self.var_k, self.batches, self.in_use,
            *_pooled(batch, weight, self.about_mean_key), batch.keys.sum(), self.momentum, self.about_mean_key,
        )  # fmt: skip
        return _unpack(packed, length)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RunningStatistics":
        """Stay in float32 when the model is cast to half precision, where small updates would be lost."""
        super()._apply(fn, recurse)
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                self._buffers[name] = buffer.float()
        return self


def _unpack(packed: Tensor, length: int) -> Statistics:
    packed = packed.to(accumulation_dtype(packed.device))[None]  # (1, Hk, 3 + D)
    mean_q, var_q, var_k = packed[..., 0], packed[..., 1], packed[..., 2]
    keys = torch.full((1,), length, dtype=packed.dtype, device=packed.device)
    return Statistics(mean_q, var_q, packed[..., 3:], var_k, keys)


def _pooled(batch: Statistics, weight: Tensor, about_mean_key: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and mean square over the samples: mean_q (Hk,), square_q (Hk,), mean_key (Hk, D), square_k (Hk,).

    square_k is about zero: variance plus the square of the mean it was taken about.
    """
    weight = weight[:, None]
    mean_key = (weight[..., None] * batch.mean_key).sum(dim=0)
    square_q = (weight * (batch.var_q + batch.mean_q.square())).sum(dim=0)
    square_k = (weight * (batch.var_k + _square_of_mean(batch.mean_key, about_mean_key))).sum(dim=0)
    return (weight * batch.mean_q).sum(dim=0), square_q, mean_key, square_k


def _square_of_mean(mean_key: Tensor, about_mean_key: bool) -> Tensor:
    return mean_key.square().mean(dim=-1) if about_mean_key else mean_key.mean(dim=-1).square()


@torch.library.custom_op(
    "lln::use_and_update_statistics", mutates_args=("mean_q", "var_q", "mean_key", "var_k", "batches", "in_use")
)
def _use_and_update(
    mean_q: Tensor,
    var_q: Tensor,
    mean_key: Tensor,
    var_k: Tensor,
    batches: Tensor,
    in_use: Tensor,
    batch_mean_q: Tensor,
    batch_square_q: Tensor,
    batch_mean_key: Tensor,
    batch_square_k: Tensor,
    tokens: Tensor,
    momentum: float,
    about_mean_key: bool,
) -> Tensor:
    if torch._C._current_graph_task_id() != -1:  # inside a backward pass: checkpointing recomputes
        return in_use.clone()
    in_use.copy_(torch.cat([mean_q[:, None], var_q[:, None], var_k[:, None], mean_key], dim=1))

    columns = [batch_mean_q[:, None], batch_square_q[:, None], batch_square_k[:, None], batch_mean_key]
    sums = torch.cat(columns, dim=1) * tokens
    sums, tokens = _over_processes(sums, tokens)
    batch = sums / tokens.clamp_min(1)
    new_mean_q, new_mean_key = batch[:, 0], batch[:, 3:]
    new_var_q = (batch[:, 1] - new_mean_q.square()).clamp_min(0)
    new_var_k = (batch[:, 2] - _square_of_mean(new_mean_key, about_mean_key)).clamp_min(0)

    has_tokens = (tokens > 0).to(batches.dtype)  # a batch of nothing but padding says nothing
    batches += has_tokens
    w = momentum / (1 - (1 - momentum) ** batches.clamp_min(1).to(batch.dtype)) * has_tokens
    moved_key = new_mean_key - mean_key
    moved_k = _square_of_mean(moved_key, about_mean_key)
    var_q.copy_((1 - w) * var_q + w * new_var_q + w * (1 - w) * (new_mean_q - mean_q).square())
    var_k.copy_((1 - w) * var_k + w * new_var_k + w * (1 - w) * moved_k)
    mean_q.copy_(mean_q + w * (new_mean_q - mean_q))
    mean_key.copy_(mean_key + w * moved_key)
    return in_use.clone()


@_use_and_update.register_fake
def _fake_use_and_update(
    mean_q: Tensor, var_q: Tensor, mean_key: Tensor, var_k: Tensor, batches: Tensor, in_use: Tensor, *_: object
) -> Tensor:
    return torch.empty_like(in_use)


def _over_processes(sums: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return sums, tokens
    together = torch.cat([sums.flatten(), tokens[None]])
    torch.distributed.all_reduce(together)
    return together[:-1].view_as(sums), together[-1]
