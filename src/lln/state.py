"""The recurrent state of causal attention: what the past is, in a size that does not depend on its length.

For LLN, with b_j = beta k_j over all keys seen so far (eq. 8, causal):

    maximum    c = max_j b_j                        (B, Hk, D), -inf while no key has counted
    summed     S = sum_j exp(b_j - c) v_j^T         (B, Hk, D, Dv)
    normaliser z = sum_j exp(b_j - c)               (B, Hk, D)

LLN+Diag adds the open block: the keys and values since the last block boundary.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

VERSION = 1


@dataclass(frozen=True)
class OpenBlock:
    """Keys and values of the block that is not full yet; slots from `filled` on hold nothing."""

    keys: Tensor  # (B, Hk, block, D)
    values: Tensor  # (B, Hk, block, Dv)
    counts: Tensor  # (B, block) bool, which slots hold a key that counts
    filled: Tensor  # (B,) int64, how many slots are taken; 0 <= filled < block
    started: Tensor  # (B,) bool, whether a key has counted yet: blocks are counted from the first that does

    @property
    def size(self) -> int:
        return self.keys.shape[2]


@dataclass(frozen=True)
class LLNState:
    """Returned by `return_state=True` and taken by `state=`. It carries no gradient.

    Every tensor has the batch as its first dimension, so a state can be reordered and repeated as beams are.
    """

    maximum: Tensor
    summed: Tensor
    normaliser: Tensor
    alpha: Tensor  # (B, Hq, D), what the state was made with
    beta: Tensor  # (B, Hk, D)
    block: OpenBlock | None = None

    def select(self, index: Tensor) -> "LLNState":
        """The samples `index` of the batch, in that order: reordering, repeating or dropping beams."""
        return self._map(lambda x: x.index_select(0, index.to(x.device)))

    def repeat_interleave(self, repeats: int) -> "LLNState":
        """Each sample `repeats` times in a row."""
        return self._map(lambda x: x.repeat_interleave(repeats, dim=0))

    def to(self, device: torch.device | str) -> "LLNState":
        return self._map(lambda x: x.to(device))

    def clone(self) -> "LLNState":
        return self._map(torch.clone)

    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self.state_dict().values())

    def state_dict(self) -> dict[str, Tensor]:
        """Plain tensors, for `torch.save`, safetensors or `load`."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "block"}
        if self.block is not None:
            tensors |= {f"block.{f.name}": getattr(self.block, f.name) for f in fields(self.block)}
        return tensors | {"version": torch.tensor(VERSION)}

    @staticmethod
    def load(tensors: dict[str, Tensor]) -> "LLNState":
        """The state that `state_dict` wrote; one of another version is refused."""
        version = int(tensors["version"]) if "version" in tensors else None
        if version != VERSION:
            raise ValueError(f"this is a state of version {version}; this release reads version {VERSION}")
        parts = {name: x for name, x in tensors.items() if "." not in name and name != "version"}
        block = {name.removeprefix("block."): x for name, x in tensors.items() if name.startswith("block.")}
        return LLNState(**parts, block=OpenBlock(**block) if block else None)

    def check(self, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, block_size: int | None) -> None:
        """Refuse a state that was made for something else."""
        expected = (k.shape[0], k.shape[1], k.shape[3], v.shape[3])
        if tuple(self.summed.shape) != expected:
            raise ValueError(
                "the state was made for (batch, key heads, head size, value size) = "
                f"{tuple(self.summed.shape)}, these inputs have {expected}"
            )
        if self.summed.device != k.device or self.summed.dtype != beta.dtype:
            raise ValueError(
                f"the state is {self.summed.dtype} on {self.summed.device}; these inputs need {beta.dtype} on {k.device}"
            )
        own_block = None if self.block is None else self.block.size
        if own_block != block_size:
            raise ValueError(f"the state was made {_made_by(own_block)}; this call is {_made_by(block_size)}")
        if torch.compiler.is_compiling():  # comparing values would break the graph
            return
        for name, own, given in (("alpha", self.alpha, alpha), ("beta", self.beta, beta)):
            if not torch.equal(own, given):
                raise ValueError(f"the state was made with another {name}; its sums cannot go on with this one")

    def _map(self, change: Callable[[Tensor], Tensor]) -> "LLNState":
        changed: dict[str, Any] = {f.name: change(getattr(self, f.name)) for f in fields(self) if f.name != "block"}
        if self.block is not None:
            block = {f.name: change(getattr(self.block, f.name)) for f in fields(self.block)}
            changed["block"] = replace(self.block, **block)
        return replace(self, **changed)


def _made_by(block_size: int | None) -> str:
    return (
        "by lln_attention, without blocks"
        if block_size is None
        else f"by lln_diag_attention with block size {block_size}"
    )
