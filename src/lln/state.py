"""The recurrent state of causal attention: a summary of the past whose size does not depend on its length.

For LLN, with b_j = beta k_j over all keys seen so far (eq. 8, causal):

    maximum    c = max_j b_j                        (B, Hk, D), -inf while no key has counted
    summed     S = sum_j exp(b_j - c) v_j^T         (B, Hk, D, Dv)
    normaliser z = sum_j exp(b_j - c)               (B, Hk, D)

The keys are the past of causal attention, or any set of keys that later queries should see. The two sums are in float64
(float32 on devices without it) for inputs of any dtype. A sum that is rounded to float32 at each of n steps loses digits as n
grows, until at 2^24 one more token changes nothing.

LLN+Diag adds the open block: the keys and values since the last block boundary.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from lln.ops.blocks.open_block import OpenBlock
from lln.ops.lln.op import accumulation_dtype

VERSION = 1


@dataclass(frozen=True)
class LLNState:
    """Returned with `return_state=True` and passed back as `state=`. Gradients flow through its sums until `detach`.

    The first dimension of every tensor is the batch, so a state can be reordered and repeated for beam search.
    """

    maximum: Tensor
    summed: Tensor
    normaliser: Tensor
    alpha: Tensor  # (B, Hq, D), what the state was made with
    beta: Tensor  # (B, Hk, D)
    block: OpenBlock | None = None

    def select(self, index: Tensor) -> "LLNState":
        """The samples `index` of the batch, in that order: reorders, repeats or drops beams."""
        return self._map(lambda x: x.index_select(0, index.to(x.device)))

    def repeat_interleave(self, repeats: int) -> "LLNState":
        """Each sample `repeats` times in a row."""
        return self._map(lambda x: x.repeat_interleave(repeats, dim=0))

    def to(self, device: torch.device | str) -> "LLNState":
        """The same on another device."""
        return self._map(lambda x: x.to(device))

    def detach(self) -> "LLNState":
        """A copy without gradient history."""
        return self._map(torch.detach)

    def clone(self) -> "LLNState":
        """A deep copy."""
        return self._map(torch.clone)

    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(x.numel() * x.element_size() for x in self.state_dict().values())

    def state_dict(self) -> dict[str, Tensor]:
        """Plain tensors for `torch.save`, safetensors or `load`."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "block"}
        if self.block is not None:
            tensors |= {f"block.{f.name}": getattr(self.block, f.name) for f in fields(self.block)}
        return tensors | {"version": torch.tensor(VERSION)}

    @staticmethod
    def load(tensors: dict[str, Tensor]) -> "LLNState":
        """The state that `state_dict` returned. Other versions are refused."""
        version = int(tensors["version"]) if "version" in tensors else None
        if version != VERSION:
            raise ValueError(f"this is a state of version {version}; this release reads version {VERSION}")
        block = {name.removeprefix("block."): x for name, x in tensors.items() if name.startswith("block.")}
        parts = {name: x for name, x in tensors.items() if name != "version" and not name.startswith("block.")}
        for part, kind in ((parts, LLNState), (block, OpenBlock)):
            names = {f.name for f in fields(kind)} - {"block"}
            if part.keys() != names and (part or kind is LLNState):
                raise ValueError(
                    f"a state has {', '.join(sorted(names))}{' in its block' if kind is OpenBlock else ''}, "
                    f"got {', '.join(sorted(part)) or 'none of them'}"
                )
        for name in ("summed", "normaliser"):  # in float32 in the files of earlier releases
            parts[name] = parts[name].to(accumulation_dtype(parts[name].device))
        return LLNState(**parts, block=OpenBlock(**block) if block else None)

    def check(self, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, block_size: int | None) -> None:
        """Raise ValueError if the state does not fit these inputs."""
        expected = (k.shape[0], k.shape[1], k.shape[3], v.shape[3])
        if tuple(self.summed.shape) != expected:
            raise ValueError(
                "the state was made for (batch, key heads, head size, value size) = "
                f"{tuple(self.summed.shape)}, these inputs have {expected}"
            )
        if self.block is not None and self.block.keys.dim() != 4:
            raise ValueError(f"block.keys of the state must have 4 dimensions, got {tuple(self.block.keys.shape)}")
        own_block = None if self.block is None else self.block.size
        if own_block != block_size:
            raise ValueError(f"the state was made {_made_by(own_block)}; this call is {_made_by(block_size)}")
        self._check_tensors(k, v, alpha, beta)
        if torch.compiler.is_compiling():  # comparing values would break the graph
            return
        for name, own, given in (("alpha", self.alpha, alpha), ("beta", self.beta, beta)):
            other = f"the state was made with another {name} and cannot be continued with this one"
            if not own.is_cpu:  # nothing waits for the host: the device notices by itself
                torch._assert_async((own == given).all(), other)
            elif not torch.equal(own, given):
                raise ValueError(other)

    def _check_tensors(self, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor) -> None:
        """Every tensor of the state has the shape, dtype and device that these inputs need. No value is read."""
        of_keys, scale_dtype, sums = tuple(beta.shape), beta.dtype, accumulation_dtype(k.device)
        fitting = {
            "maximum": (self.maximum, of_keys, scale_dtype),
            "summed": (self.summed, (*of_keys, v.shape[3]), sums),
            "normaliser": (self.normaliser, of_keys, sums),
            "alpha": (self.alpha, tuple(alpha.shape), scale_dtype),
            "beta": (self.beta, of_keys, scale_dtype),
        }
        if self.block is not None:
            batch, heads, size = k.shape[0], k.shape[1], self.block.size
            fitting |= {
                "block.keys": (self.block.keys, (batch, heads, size, k.shape[3]), k.dtype),
                "block.values": (self.block.values, (batch, heads, size, v.shape[3]), v.dtype),
                "block.counts": (self.block.counts, (batch, size), torch.bool),
                "block.filled": (self.block.filled, (batch,), torch.int64),
                "block.started": (self.block.started, (batch,), torch.bool),
            }
        for name, (x, shape, dtype) in fitting.items():
            if tuple(x.shape) != shape:
                raise ValueError(f"{name} of the state must have shape {shape} here, got {tuple(x.shape)}")
            if x.dtype != dtype or x.device != k.device:
                raise ValueError(f"{name} of the state must be {dtype} on {k.device} here, got {x.dtype} on {x.device}")

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
