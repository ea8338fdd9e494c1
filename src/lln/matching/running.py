"""Running statistics of q and k, as buffers that are used first and updated after (see `lln.matching.matcher`).

Use and update are one torch operator: whether this is a recomputation inside a backward pass
(`lln.matching.forward_calls`), and whether other processes take part, is only known when it runs, so a compiled graph must
not decide it while it is traced. What was in use crosses it as one tensor (Hk, 5 or 5 + D): mean_q, var_q, var_k,
log_factor (2) and, where it is subtracted, the mean key, side by side.

log_factor is the running mean of what the samples of a batch ask for beyond the table, of alpha and of beta
(`lln.matching.sample_factor`). Checkpoints from before there was one are read as 0: the table alone.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from lln.matching.forward_calls import ForwardCalls
from lln.ops.lln.op import accumulation_dtype
from lln.ops.moments.statistics import Statistics
from lln.ops.operation import LIBRARY


class RunningStatistics(nn.Module):
    """Mean and variance of q and k per key head. Before any batch: variance 1, mean 0, that is T = 1."""

    mean_q: Tensor
    var_q: Tensor
    mean_key: Tensor
    var_k: Tensor
    log_factor: Tensor
    batches: Tensor

    def __init__(self, key_heads: int, head_dim: int, momentum: float, about_mean_key: bool) -> None:
        super().__init__()
        self.momentum, self.about_mean_key = momentum, about_mean_key
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)  # a model may be made in half precision
        shapes = {"mean_q": (), "var_q": (), "mean_key": (head_dim,), "var_k": (), "log_factor": (2,)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.empty(key_heads, *shape, dtype=dtype))
        self.register_buffer("batches", torch.empty((), dtype=torch.int64))
        self._calls = ForwardCalls()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As before any batch."""
        for start, buffers in (
            (0, (self.mean_q, self.mean_key, self.log_factor, self.batches)),
            (1, (self.var_q, self.var_k)),
        ):
            for buffer in buffers:
                buffer.fill_(start)

    def current(self, length: int) -> Statistics:
        """The statistics as they stand, as those of one sample of `length` keys."""
        buffers = (self.mean_q, self.var_q, self.mean_key, self.var_k, self.log_factor)
        return _unpack(_packed(*buffers, self.about_mean_key), length)

    def use_and_update(self, batch: Statistics, length: int) -> Statistics:
        """What stood before this batch; afterwards the batch is folded in."""
        weight = batch.keys / batch.keys.sum().clamp_min(1)  # samples count by their tokens
        # the call's number is drawn here, not in the operator, so that compilers, too, restore the generator for it
        number = torch.randint(2**62, (), device="cpu")
        packed = _use_and_update(
            self.mean_q, self.var_q, self.mean_key, self.var_k, self.log_factor, self.batches, self._calls.handle, number,
            *_pooled(batch, weight, self.about_mean_key), batch.keys.sum(), self.momentum, self.about_mean_key,
        )  # fmt: skip
        return _unpack(packed, length)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}log_factor", torch.zeros_like(self.log_factor))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has calls of its own."""
        super().__setstate__(state)
        self._calls = ForwardCalls()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_calls"}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RunningStatistics":
        """Stay in float32 when the model is cast to half precision, where small updates would be lost."""

        def keep_digits(x: Tensor) -> Tensor:
            moved = fn(x)
            if not moved.is_floating_point() or moved.dtype == torch.float32:
                return moved
            return x.to(moved.device, torch.float32)  # not by way of `moved`, which has lost digits

        super()._apply(keep_digits, recurse)
        return self


def _packed(
    mean_q: Tensor, var_q: Tensor, mean_key: Tensor, var_k: Tensor, log_factor: Tensor, about_mean_key: bool
) -> Tensor:
    columns = [mean_q[:, None], var_q[:, None], var_k[:, None], log_factor]
    return torch.cat([*columns, mean_key] if about_mean_key else columns, dim=1)


def _unpack(packed: Tensor, length: int) -> Statistics:
    """`_packed` statistics as those of one sample; the mean key has no features where it is not subtracted."""
    packed = packed.to(accumulation_dtype(packed.device))[None]  # (1, Hk, 5 or 5 + D)
    mean_q, var_q, var_k = packed[..., :3].unbind(-1)
    keys = torch.full((1,), length, dtype=packed.dtype, device=packed.device)
    return Statistics(mean_q, var_q, packed[..., 5:], var_k, keys, packed[..., 3:5])


def _pooled(batch: Statistics, weight: Tensor, about_mean_key: bool) -> tuple[Tensor, ...]:
    """Over the samples: mean_q (Hk,), square_q (Hk,), mean_key (Hk, D), square_k (Hk,) and log_factor (Hk, 2).

    square_k is about zero: variance plus the square of the mean it was taken about.
    """

    def pooled(x: Tensor) -> Tensor:
        by_sample = weight.view(-1, *[1] * (x.dim() - 1))
        return torch.where(by_sample > 0, by_sample * x, 0.0).sum(dim=0)  # queries without a key may hold NaN

    square_q = batch.var_q + batch.mean_q.square()
    square_k = batch.var_k + _square_of_mean(batch.mean_key, about_mean_key)
    log_factor = square_k.new_zeros(*square_k.shape, 2) if batch.log_factor is None else batch.log_factor
    return tuple(pooled(x) for x in (batch.mean_q, square_q, batch.mean_key, square_k, log_factor))


def _square_of_mean(mean_key: Tensor, about_mean_key: bool) -> Tensor:
    return mean_key.square().mean(dim=-1) if about_mean_key else mean_key.mean(dim=-1).square()


def _use_and_update_body(
    mean_q: Tensor,
    var_q: Tensor,
    mean_key: Tensor,
    var_k: Tensor,
    log_factor: Tensor,
    batches: Tensor,
    calls: Tensor,
    number: Tensor,
    batch_mean_q: Tensor,
    batch_square_q: Tensor,
    batch_mean_key: Tensor,
    batch_square_k: Tensor,
    batch_log_factor: Tensor,
    tokens: Tensor,
    momentum: float,
    about_mean_key: bool,
) -> Tensor:
    numbers = (batch_mean_q, batch_square_q, batch_square_k)
    sums = torch.cat([*(x[:, None] for x in numbers), batch_log_factor, batch_mean_key], dim=1) * tokens
    forward_calls = ForwardCalls.of(calls)
    if torch._C._current_graph_task_id() != -1:  # inside a backward pass: checkpointing recomputes
        return forward_calls.used_by(int(number), _fingerprint(sums))
    in_use = _packed(mean_q, var_q, mean_key, var_k, log_factor, about_mean_key)
    forward_calls.record(int(number), partial(_fingerprint, sums), in_use)

    sums, tokens = _over_processes(sums, tokens)
    batch = sums / tokens.clamp_min(1)
    new_mean_q, new_mean_key = batch[:, 0], batch[:, 5:]
    new_var_q = (batch[:, 1] - new_mean_q.square()).clamp_min(0)
    new_var_k = (batch[:, 2] - _square_of_mean(new_mean_key, about_mean_key)).clamp_min(0)

    w = momentum / (1 - (1 - momentum) ** (batches + 1).to(batch.dtype))
    moved_q, moved_key = new_mean_q - mean_q, new_mean_key - mean_key
    moved_k = _square_of_mean(moved_key, about_mean_key)
    updated = torch.cat(
        [
            (mean_q + w * moved_q)[:, None],
            ((1 - w) * var_q + w * new_var_q + w * (1 - w) * moved_q.square())[:, None],
            ((1 - w) * var_k + w * new_var_k + w * (1 - w) * moved_k)[:, None],
            log_factor + w * (batch[:, 3:5] - log_factor),
            mean_key + w * moved_key,
        ],
        dim=1,
    ).to(mean_q.dtype)
    # A batch of nothing but padding says nothing. One with a number that is not finite, in whichever head or process,
    # would stay in the statistics for good: all of it is left out, by all processes alike.
    counts = (tokens > 0) & updated.isfinite().all()
    batches += counts
    for buffer, columns in zip(
        (mean_q, var_q, var_k, log_factor, mean_key),
        (updated[:, 0], updated[:, 1], updated[:, 2], updated[:, 3:5], updated[:, 5:]),
        strict=True,
    ):
        buffer.copy_(torch.where(counts, columns, buffer))
    return in_use.clone()


def _fake_use_and_update(
    mean_q: Tensor, var_q: Tensor, mean_key: Tensor, var_k: Tensor, log_factor: Tensor, *rest: Any
) -> Tensor:
    return _packed(mean_q, var_q, mean_key, var_k, log_factor, bool(rest[-1]))


def _fingerprint(sums: Tensor) -> Tensor:
    """(Hk, 6), of the sums of q, q^2, k^2, log_factor and k: what a recomputation, having the same q and k, has again."""
    return torch.cat([sums[:, :5], sums[:, 5:].sum(dim=1, keepdim=True)], dim=1)


_BUFFERS = ", ".join(
    f"Tensor({alias}!) {name}"
    for alias, name in zip("abcdef", ("mean_q", "var_q", "mean_key", "var_k", "log_factor", "batches"), strict=True)
)
_GIVEN = ", ".join(
    f"Tensor {name}"
    for name in (
        "calls",
        "number",
        "batch_mean_q",
        "batch_square_q",
        "batch_mean_key",
        "batch_square_k",
        "batch_log_factor",
        "tokens",
    )
)
LIBRARY.define(f"use_and_update_statistics({_BUFFERS}, {_GIVEN}, float momentum, bool about_mean_key) -> Tensor")
LIBRARY.impl("use_and_update_statistics", _use_and_update_body, "CompositeExplicitAutograd")
torch.library.register_fake("lln::use_and_update_statistics", _fake_use_and_update, lib=LIBRARY)
_use_and_update = torch.ops.lln.use_and_update_statistics.default


def _over_processes(sums: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return sums, tokens
    together = torch.cat([sums.flatten(), tokens[None]])
    torch.distributed.all_reduce(together)
    return together[:-1].view_as(sums), together[-1]
