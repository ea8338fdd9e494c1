"""The past of causal near-far attention, in a size that does not depend on its length."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lln.ops.lln.op import accumulation_dtype
from lln.ops.near_far.continued import Past
from lln.ops.near_far.layout import FirstTokens
from lln.ops.near_far.moments import Moments
from lln.ops.near_far.op import Operands

VERSION = 2


@dataclass(frozen=True)
class NearFarState:
    """Returned by `return_state=True` and taken by `state=`. Gradients flow through it; `detach` cuts them off.

    The moments of the far keys are sums over all that came before; they are in float64 (float32 on devices without it), so that
    no error grows with the number of tokens. Every tensor has the batch as its first dimension.
    """

    total: Tensor  # (B, 1, 1), how many keys are far
    key_mean: Tensor  # (B, Hk, D)
    key_spread: Tensor  # (B, Hk, D), the sum of squared deviations from the mean
    value_mean: Tensor  # (B, Hk, Dv)
    product: Tensor  # (B, Hk, D, Dv), the sum of products of deviations
    maximum: Tensor  # (B, Hk, D), LLN's sums as in `LLNState`
    summed: Tensor  # (B, Hk, D, Dv)
    normaliser: Tensor  # (B, Hk, D)
    window_keys: Tensor  # (B, Hk, (neighbours + 1) block_size, D), the open block and those before it
    window_values: Tensor
    window_counts: Tensor  # (B, neighbours + 1, block_size) bool, which hold a key that counts
    first_keys: Tensor  # (B, Hk, first_tokens, D)
    first_values: Tensor
    first_counts: Tensor  # (B, first_tokens) bool
    taken: Tensor  # (B,) int64, positions so far, from the first key that counted on
    alpha: Tensor  # (B, Hq, D), what the state was made with
    beta: Tensor  # (B, Hk, D)

    @staticmethod
    def of(past: Past, x: Operands) -> "NearFarState":
        """The state after `x`, from what the operation left."""
        window = (past.keys, past.values, past.counts.unflatten(1, (x.neighbours + 1, x.block_size)))
        return NearFarState(*past.moments, *window, *past.first, past.taken, x.alpha.detach(), x.beta.detach())

    @property
    def past(self) -> Past:
        """The same as the operation takes it."""
        moments = Moments(*(getattr(self, name) for name in Moments._fields))
        first = FirstTokens(self.first_keys, self.first_values, self.first_counts)
        counts = self.window_counts.flatten(1)
        return Past(moments, self.window_keys, self.window_values, counts, first, self.taken)

    def select(self, index: Tensor) -> "NearFarState":
        """The samples `index` of the batch, in that order: reordering, repeating or dropping beams."""
        return self._map(lambda x: x.index_select(0, index.to(x.device)))

    def repeat_interleave(self, repeats: int) -> "NearFarState":
        """Each sample `repeats` times in a row."""
        return self._map(lambda x: x.repeat_interleave(repeats, dim=0))

    def to(self, device: torch.device | str) -> "NearFarState":
        """The same on another device."""
        return self._map(lambda x: x.to(device))

    def detach(self) -> "NearFarState":
        """The same without its history: no gradient goes further back."""
        return self._map(torch.detach)

    def clone(self) -> "NearFarState":
        """A copy with memory of its own."""
        return self._map(torch.clone)

    def nbytes(self) -> int:
        """What it takes in memory."""
        return sum(x.numel() * x.element_size() for x in self.state_dict().values())

    def state_dict(self) -> dict[str, Tensor]:
        """Plain tensors, for `torch.save`, safetensors or `load`."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"version": torch.tensor(VERSION)}

    @staticmethod
    def load(tensors: dict[str, Tensor]) -> "NearFarState":
        """The state that `state_dict` wrote; one of another version is refused."""
        version = int(tensors["version"]) if "version" in tensors else None
        if version != VERSION:
            raise ValueError(f"this is a state of version {version}; this release reads version {VERSION}")
        parts = {name: x for name, x in tensors.items() if name != "version"}
        names = {f.name for f in fields(NearFarState)}
        if parts.keys() != names:
            raise ValueError(
                f"a state has {', '.join(sorted(names))}, got {', '.join(sorted(parts)) or 'none of them'}"
            )
        return NearFarState(**parts)

    def check(self, x: Operands) -> None:
        """Refuse a state that was made for something else."""
        batch, heads, _, dim = x.k.shape
        value_dim, window, first = x.v.shape[3], (x.neighbours + 1) * x.block_size, x.first_tokens
        scales, sums = x.beta.dtype, accumulation_dtype(x.k.device)
        of_keys, pairs = (batch, heads, dim), (batch, heads, dim, value_dim)
        fitting = {
            "product": (pairs, sums),
            "window_keys": ((batch, heads, window, dim), x.k.dtype),
            "window_values": ((batch, heads, window, value_dim), x.v.dtype),
            "window_counts": ((batch, x.neighbours + 1, x.block_size), torch.bool),
            "first_keys": ((batch, heads, first, dim), x.k.dtype),
            "first_values": ((batch, heads, first, value_dim), x.v.dtype),
            "first_counts": ((batch, first), torch.bool),
            "total": ((batch, 1, 1), sums),
            "key_mean": (of_keys, sums),
            "key_spread": (of_keys, sums),
            "value_mean": ((batch, heads, value_dim), sums),
            "maximum": (of_keys, scales),
            "summed": (pairs, sums),
            "normaliser": (of_keys, sums),
            "taken": ((batch,), torch.int64),
            "alpha": (tuple(x.alpha.shape), scales),
            "beta": (of_keys, scales),
        }
        for name, (shape, dtype) in fitting.items():
            own = getattr(self, name)
            if tuple(own.shape) != shape:
                raise ValueError(
                    f"{name} of the state must have shape {shape} for these inputs with block size {x.block_size}, "
                    f"{x.neighbours} neighbours and {first} first tokens, got {tuple(own.shape)}"
                )
            if own.dtype != dtype or own.device != x.k.device:
                raise ValueError(
                    f"{name} of the state must be {dtype} on {x.k.device} here, got {own.dtype} on {own.device}"
                )
        if torch.compiler.is_compiling():  # comparing values would break the graph
            return
        for name, given in (("alpha", x.alpha), ("beta", x.beta)):
            own, other = getattr(self, name), f"the state was made with another {name}; its sums cannot go on with it"
            if not own.is_cpu:  # nothing waits for the host: the device notices by itself
                torch._assert_async((own == given).all(), other)
            elif not torch.equal(own, given):
                raise ValueError(other)
        if self.taken.is_cpu and bool((self.taken < 0).any()):
            raise ValueError(f"taken of the state must be at least 0, got {self.taken.tolist()}")

    def _map(self, change: Callable[[Tensor], Tensor]) -> "NearFarState":
        return replace(self, **{f.name: change(getattr(self, f.name)) for f in fields(self)})
