"""Statistics of q and k over many batches, from those of each sample.

With weight w_s (the keys of sample s) the pooled variance is that within samples plus that of their means:

    var = sum_s w_s var_s / W + sum_s w_s (mean_s - mean)^2 / W

and the factor on alpha and beta beyond the table (`lln.matching.sample_factor`) is the mean of its logarithms.
"""

import torch
from torch import Tensor

from lln.conversion.asked import Call
from lln.matching import sample_factor
from lln.ops.moments.statistics import Statistics, statistics_of

_FACTOR = {False: "log_factor", True: "log_factor_centred"}


class PooledStatistics:
    """Adds up calls of one attention module; `result` has one sample, S = 1, that stands for all."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.weight = 0.0
        self.samples = 0
        self.scale: float | None = None  # of q.k, as the module asks for it: some scale q before
        self.heads = (0, 0, 0)  # Hq, Hk and D

    def add(self, call: Call) -> None:
        s = statistics_of(call.q, call.k, key_mask=call.key_mask, cu_seqlens=call.cu_seqlens, center_keys=True)
        self.scale, self.heads = call.scale, (call.q.shape[1], call.k.shape[1], call.q.shape[3])
        weight = s.keys.double()
        parts = {
            "mean_q": s.mean_q, "square_q": s.var_q + s.mean_q.square(), "mean_key": s.mean_key,
            "square_key": s.mean_key.square(), "var_k": s.var_k, **self._factors(call),
        }  # fmt: skip
        for name, x in parts.items():
            total = torch.einsum("s,s...->...", weight.to(x), x)
            self.sums[name] = self.sums[name] + total if name in self.sums else total
        self.weight += float(weight.sum())
        self.samples += weight.numel()

    @staticmethod
    def _factors(call: Call) -> dict[str, Tensor]:
        """What the samples ask for beyond the table, with the mean key subtracted and not."""
        return {
            _FACTOR[center_keys]: sample_factor(
                call.q, call.k, key_mask=call.key_mask, cu_seqlens=call.cu_seqlens, scale=call.scale,
                center_keys=center_keys,
            )
            for center_keys in (False, True)
        }  # fmt: skip

    def result(self, center_keys: bool) -> Statistics:
        """sigma_k about the pooled mean key, or about the scalar mean where the mean key is not subtracted."""
        mean = {name: x / self.weight for name, x in self.sums.items()}
        var_q = mean["square_q"] - mean["mean_q"].square()
        about = mean["mean_key"].square() if center_keys else mean["mean_key"].mean(-1, keepdim=True).square()
        var_k = mean["var_k"] + (mean["square_key"] - about).mean(-1)
        keys = torch.full((1,), self.weight / self.samples, dtype=var_k.dtype, device=var_k.device)
        return Statistics(
            mean["mean_q"][None],
            var_q.clamp_min(0)[None],
            mean["mean_key"][None],
            var_k.clamp_min(0)[None],
            keys,
            mean[_FACTOR[center_keys]][None],
        )
