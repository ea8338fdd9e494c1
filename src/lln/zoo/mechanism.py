"""The base class of members that are functions of q, k and v, with or without weights.

It checks the arguments, replaces padding (even NaN) by zeros, aligns samples at their first unmasked key if the member uses
positions, and computes in float32 at least.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lln.ops.masks import first_key
from lln.ops.stretches import refuse_stretches


@dataclass(frozen=True)
class Shape:
    """The size of a layer: E, H and the largest N, or None if the length is not limited."""

    embed_dim: int
    num_heads: int
    max_length: int | None

    def __post_init__(self) -> None:
        for name in ("embed_dim", "num_heads", "max_length"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"embed_dim must be a multiple of num_heads, got embed_dim={self.embed_dim}, num_heads={self.num_heads}"
            )

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads

    @property
    def longest(self) -> int:
        """max_length, for members that cannot do without."""
        if self.max_length is None:
            raise ValueError("this member has weights for every position: it needs max_length, the longest input")
        return self.max_length


class Mechanism(nn.Module):
    """out (B, H, Nq, Dv) from q (B, H, Nq, D), k (B, H, Nk, D), v (B, H, Nk, Dv)."""

    anchored: ClassVar[bool] = False  # positions count from the first key that counts (blocks, learned positions)
    upcast: ClassVar[bool] = True  # half precision is computed in float32
    shared_qk: ClassVar[bool] = False  # the keys are made from the queries: no projection of its own for k
    works_on_stretches: ClassVar[bool] = False  # of a sequence that is cut over several processes (`lln.parallel`)
    needs_inputs: bool = False  # `attend` also takes the layer's input x (B, N, E)

    def __init__(self, options: Any, shape: Shape) -> None:
        super().__init__()
        self.options = options
        self.shape = shape

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """The member's equation. Masked keys and values are zero already, but still have to be kept from counting."""
        raise NotImplementedError

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """The N x N matrix with attend(q, k, v) = matrix @ v, literally; only members whose card says `dense`."""
        raise NotImplementedError(f"{type(self).__name__} has no dense form")

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        is_causal: bool = False,
        **inputs: Tensor,
    ) -> Tensor:
        if not self.works_on_stretches:
            refuse_stretches(type(self).__name__)
        check(q, k, v, key_mask, query_mask, self.shape.max_length)
        dtype, device = q.dtype, q.device.type
        k, v = without_padding(k, key_mask), without_padding(v, key_mask)
        q = without_padding(q, query_mask)
        if self.upcast and dtype in (torch.float16, torch.bfloat16):
            q, k, v = q.float(), k.float(), v.float()
        shift = self._shift(key_mask)
        if shift is not None:
            k, v, key_mask = roll(k, shift), roll(v, shift), roll_mask(key_mask, shift)
            q, query_mask = roll(q, shift), roll_mask(query_mask, shift)
            inputs = {name: roll(x[:, None], shift)[:, 0] for name, x in inputs.items()}
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            out = self.attend(q, k, v, key_mask, query_mask, is_causal, **inputs)
        if shift is not None:
            out = roll(out, -shift)
        return out.to(dtype)

    def dense(
        self,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The matrix (B, H, Nq, Nk) with out = matrix @ v. Takes O(N^2) memory."""
        check(q, k, k, key_mask, query_mask, self.shape.max_length)
        k, q = without_padding(k, key_mask), without_padding(q, query_mask)
        shift = self._shift(key_mask)
        if shift is None:
            return self.matrix(q, k, key_mask, query_mask, is_causal)
        matrix = self.matrix(
            roll(q, shift), roll(k, shift), roll_mask(key_mask, shift), roll_mask(query_mask, shift), is_causal
        )
        return roll(roll(matrix, -shift).transpose(-1, -2), -shift).transpose(-1, -2)

    def _shift(self, key_mask: Tensor | None) -> Tensor | None:
        """(B,): the first key that counts, or None if that is position 0 everywhere or does not matter."""
        if not self.anchored or key_mask is None or bool(key_mask[:, 0].all()):
            return None
        return first_key(key_mask)[:, 0]


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    query_mask: Tensor | None,
    max_length: int | None = None,
) -> None:
    """Refuse shapes and masks that do not fit, in the user's words."""
    shapes = f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise ValueError(f"q, k and v must be (batch, heads, length, dim), {shapes}")
    if q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3] or k.shape[:3] != v.shape[:3]:
        raise ValueError(f"q, k and v must agree in batch and heads, q and k in dim, k and v in length, {shapes}")
    if max_length is not None and max(q.shape[2], k.shape[2]) > max_length:
        raise ValueError(f"built for lengths up to max_length={max_length}, {shapes}")
    if q.dtype != k.dtype or q.dtype != v.dtype:
        raise ValueError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    for name, mask, length in (("key", key_mask, k.shape[2]), ("query", query_mask, q.shape[2])):
        if mask is not None and (mask.dtype != torch.bool or mask.shape != (q.shape[0], length)):
            raise ValueError(
                f"{name}_mask must be bool of shape {(q.shape[0], length)}, True where a {name} counts; "
                f"got {mask.dtype} of shape {tuple(mask.shape)}"
            )


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zeros where the mask (B, N) is False: 0 x NaN would be NaN, and masked positions must get zero gradients."""
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0.0)


def queries_that_count(q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None) -> Tensor | None:
    """(B, Nq), for what is made of all queries together, or None where all count.

    Where the caller does not say and there are as many queries as keys, they are one sequence, as everywhere in this
    package: a query counts where its key does.
    """
    return key_mask if query_mask is None and q.shape[2] == k.shape[2] else query_mask


def roll(x: Tensor, shift: Tensor) -> Tensor:
    """x (B, H, N, D) with position shift_b moved to 0 in sample b."""
    length = x.shape[2]
    index = (torch.arange(length, device=x.device) + shift[:, None]) % length  # (B, N)
    return x.gather(2, index[:, None, :, None].expand_as(x))


def roll_mask(mask: Tensor | None, shift: Tensor) -> Tensor | None:
    return None if mask is None else roll(mask[:, None, :, None], shift)[:, 0, :, 0]
