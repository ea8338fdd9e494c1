"""MomentMatcher: where a layer's alpha and beta come from.

    mode "sample"     matched to each sample (bidirectional attention: batch mates and padding have no influence)
    mode "running"    matched to running statistics of q and k, as batch normalisation has them (for causal attention)
    mode "fixed"      given once
    mode "learnable"  parameters, log alpha and log beta, per head or per head and feature

Running statistics are used first and updated after, so that a batch never affects itself. With weight w and the
batch's own mean m and variance v the update keeps the variance about the running mean exact:

    var <- (1 - w) var + w v + w (1 - w) (m - mean)^2,    mean <- (1 - w) mean + w m

w = momentum / (1 - (1 - momentum)^n) at the n-th batch, so the first batch sets the statistics. They are pooled over
processes where torch.distributed is initialised, and do not change in eval mode. A batch with a statistic that is not
finite (after an overflow in half precision, say) does not enter them.

Gradient checkpointing runs the forward pass a second time inside the backward pass. Then nothing is updated, and the
call is given the statistics that it used the first time, however many calls came after it and whichever is recomputed
first (`lln.matching.forward_calls`). A call in training mode draws one number from torch's generator on the CPU for that.

Subtracting the mean key mu leaves softmax as it is, but not LLN; it costs nothing as feature bias w = -beta mu.
"""

import torch
from torch import Tensor, nn

from lln.matching.match import TARGETS, match_moments, sample_factor, shape_for_attention
from lln.matching.running import RunningStatistics
from lln.ops.lln.op import compute_dtype
from lln.ops.moments.formula import DEFAULT_TARGET, degrees_of_freedom, match_statistics
from lln.ops.moments.statistics import Statistics, moments, statistics_of
from lln.ops.stretches import own_boundaries

MODES = ("sample", "running", "fixed", "learnable")


class MomentMatcher(nn.Module):
    """Provides alpha (S, Hq, 1, 1 or D), beta (S, Hk, 1, 1 or D) and, optionally, the feature bias (S, Hq, 1, D).

    S is the number of samples (or packed sequences) in mode "sample" and 1 otherwise.

    Args:
        num_heads, num_key_heads, head_dim: as in the attention. num_key_heads=None means num_heads.
        target: "entropy", "variance" or "paper" (`lln.match_moments`).
        method: method of mode "sample", as in `lln.match_moments`. "table" can be exported.
        subtract_mean_key: also return the feature bias that subtracts the mean key: that of the sample in mode "sample", the
            running mean in modes "running" and "learnable".
        momentum: weight of a new batch in the running statistics.
        length: number of keys assumed by modes that do not see the sample; its influence is small.
        alpha, beta: values for "fixed" and "learnable": a number, one per head, or (heads, D) with per_feature. Without
            them, "learnable" starts from the values matched at T = 1.
        scale: scale of the softmax to match; None means 1/sqrt(head_dim).
    """

    alpha: Tensor
    beta: Tensor
    log_alpha: nn.Parameter
    log_beta: nn.Parameter

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        num_key_heads: int | None = None,
        mode: str = "sample",
        target: str = DEFAULT_TARGET,
        method: str | None = None,
        subtract_mean_key: bool = False,
        momentum: float = 0.1,
        length: int = 1024,
        alpha: float | Tensor | None = None,
        beta: float | Tensor | None = None,
        per_feature: bool = False,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        key_heads = num_heads if num_key_heads is None else num_key_heads
        _check(num_heads, key_heads, mode, target, momentum, length, subtract_mean_key, alpha, beta)
        self.num_heads, self.num_key_heads, self.head_dim = num_heads, key_heads, head_dim
        if method is not None and mode != "sample":
            raise ValueError(f"method goes with mode 'sample', which matches each sample anew; got mode {mode!r}")
        self.mode, self.target, self.method, self.scale = mode, target, method, scale
        self.subtract_mean_key, self.momentum, self.length = subtract_mean_key, momentum, length
        self.running: RunningStatistics | None = None
        if mode == "running" or (mode == "learnable" and subtract_mean_key):
            self.running = RunningStatistics(key_heads, head_dim, momentum, about_mean_key=subtract_mean_key)
        if mode in ("fixed", "learnable"):
            if alpha is None or beta is None:
                alpha, beta = map(float, self._matched_at_unit_temperature())
            features = head_dim if per_feature else 1
            # in the memory of the CPU, so that there is something to start from again wherever the module is made
            self._start = (
                _per_head(alpha, num_heads, features, "alpha"),
                _per_head(beta, key_heads, features, "beta"),
            )
            for name, given, start in zip(("alpha", "beta"), (alpha, beta), self._start, strict=True):
                device = given.device if isinstance(given, Tensor) else torch.get_default_device()
                own = torch.empty_like(start, device=device)
                if mode == "fixed":
                    self.register_buffer(name, own)
                else:
                    self.register_parameter(f"log_{name}", nn.Parameter(own))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reset alpha and beta to the given values, and the running statistics."""
        if self.mode == "fixed":
            self.alpha.copy_(self._start[0])
            self.beta.copy_(self._start[1])
        elif self.mode == "learnable":
            self.log_alpha.copy_(self._start[0].log())
            self.log_beta.copy_(self._start[1].log())
        if self.running is not None:
            self.running.reset_parameters()

    def forward(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(alpha, beta, feature_bias or None) for q (B, Hq, Nq, D) and k (B, Hk, Nk, D)."""
        if q.shape[1] != self.num_heads or k.shape[1] != self.num_key_heads or q.shape[3] != self.head_dim:
            raise ValueError(
                f"this MomentMatcher was made for {self.num_heads} query heads, {self.num_key_heads} key heads and "
                f"head size {self.head_dim}, got q {tuple(q.shape)} and k {tuple(k.shape)}"
            )
        if cu_seqlens is not None:
            cu_seqlens = own_boundaries(cu_seqlens, k.shape[2])
        dtype = compute_dtype(q.dtype)
        if self.mode == "sample":
            alpha, beta = match_moments(
                q, k, target=self.target, method=self.method, key_mask=key_mask, cu_seqlens=cu_seqlens, scale=self.scale,
                center_keys=self.subtract_mean_key,
            )  # fmt: skip
            if not self.subtract_mean_key:
                return alpha, beta, None
            of_k = moments(k, key_mask, cu_seqlens)
            return alpha, beta, self._bias(beta, of_k.total / of_k.count.clamp_min(1)[:, None, None])
        in_use = self._statistics(q, k, key_mask, cu_seqlens)
        if self.mode == "fixed":
            alpha, beta = self.alpha[None, :, None].to(dtype), self.beta[None, :, None].to(dtype)
        elif self.mode == "learnable":
            alpha, beta = self.log_alpha.to(dtype).exp()[None, :, None], self.log_beta.to(dtype).exp()[None, :, None]
        else:
            assert in_use is not None
            matched = match_statistics(in_use, self.head_dim, target=self.target, scale=self.scale)
            alpha, beta = shape_for_attention(*matched, self.num_heads, dtype)
        if not self.subtract_mean_key:
            return alpha, beta, None
        assert in_use is not None
        return alpha, beta, self._bias(beta, in_use.mean_key)

    def _bias(self, beta: Tensor, mean_key: Tensor) -> Tensor:
        """The feature bias (S, Hq, 1, D) that subtracts the mean key (S, Hk, D)."""
        bias = -beta * mean_key.to(beta.dtype)[:, :, None]  # (S, Hk, 1, D)
        return bias.repeat_interleave(self.num_heads // self.num_key_heads, dim=1)

    def _statistics(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None
    ) -> Statistics | None:
        """The running statistics to match to, if this mode has any; they are updated on the way."""
        if self.running is None:
            return None
        if not self.training:
            return self.running.current(self.length)
        of_batch = statistics_of(
            q, k, per="tensor" if self.target == "paper" else "head", key_mask=key_mask,
            cu_seqlens=cu_seqlens, center_keys=self.subtract_mean_key, ddof=degrees_of_freedom(self.target),
        )  # fmt: skip
        if self.mode == "running" and self.target == "entropy":
            factor = sample_factor(
                q, k, key_mask=key_mask, cu_seqlens=cu_seqlens, scale=self.scale,
                center_keys=self.subtract_mean_key, statistics=of_batch,
            )  # fmt: skip
            of_batch = of_batch._replace(log_factor=factor)
        return self.running.use_and_update(of_batch, self.length)

    def _matched_at_unit_temperature(self) -> tuple[Tensor, Tensor]:
        one = torch.ones(1, 1, dtype=torch.float64, device="cpu")
        unit_t = one * (1.0 if self.scale is None else 1.0 / (self.scale**2 * self.head_dim))
        keys = torch.full((1,), float(self.length), dtype=torch.float64, device="cpu")
        statistics = Statistics(one, unit_t.sqrt(), one[..., None], unit_t.sqrt(), keys)
        alpha, beta = match_statistics(statistics, self.head_dim, target=self.target, scale=self.scale)
        return alpha[0, 0], beta[0, 0]

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, num_key_heads={self.num_key_heads}, head_dim={self.head_dim}, "
            f"mode={self.mode!r}, target={self.target!r}, subtract_mean_key={self.subtract_mean_key}"
        )


def _per_head(value: float | Tensor, heads: int, features: int, name: str) -> Tensor:
    if isinstance(value, Tensor) and value.is_meta:
        raise ValueError(f"{name} is on the meta device and has no values: give it as a number or a tensor with values")
    value = torch.as_tensor(value, dtype=torch.float32, device="cpu").detach()
    if value.dim() == 1:
        value = value[:, None]
    if value.dim() > 2 or not (value.dim() == 0 or (value.shape[0] in (1, heads) and value.shape[1] in (1, features))):
        raise ValueError(
            f"{name} must be a number, or a tensor of shape ({heads},) or ({heads}, {features}), "
            f"got {tuple(value.shape)}"
        )
    if not bool((value > 0).all()):
        raise ValueError(f"{name} must be positive, got {value.tolist()}")
    return value.expand(heads, features).clone()


def _check(
    num_heads: int,
    key_heads: int,
    mode: str,
    target: str,
    momentum: float,
    length: int,
    subtract_mean_key: bool,
    alpha: float | Tensor | None,
    beta: float | Tensor | None,
) -> None:
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}: choose one of {', '.join(map(repr, MODES))}")
    if target not in TARGETS:
        raise ValueError(f"unknown target {target!r}: choose one of {', '.join(map(repr, TARGETS))}")
    if key_heads < 1 or num_heads % key_heads:
        raise ValueError(f"num_heads must be a multiple of num_key_heads, got {num_heads} and {key_heads}")
    if not 0 < momentum <= 1:
        raise ValueError(f"momentum must be in (0, 1], got {momentum}")
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    if (alpha is None) != (beta is None):
        raise ValueError("give alpha and beta together, or neither")
    if mode == "fixed":
        if alpha is None:
            raise ValueError("mode 'fixed' needs alpha and beta")
        if subtract_mean_key:
            raise ValueError("mode 'fixed' knows no mean key: use mode='running', which is frozen in eval mode")
    elif mode != "learnable" and alpha is not None:
        raise ValueError(f"mode {mode!r} finds alpha and beta itself: give them with mode 'fixed' or 'learnable'")
