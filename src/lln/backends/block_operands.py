"""What softmax attention inside blocks is applied to (`lln.block_diagonal`)."""

from typing import NamedTuple

from torch import Tensor


class BlockOperands(NamedTuple):
    """The arguments of the operator `lln::block_diagonal`, in its order. Hq is a multiple of Hk; strides are any."""

    q: Tensor  # (B, Hq, N, D)
    k: Tensor  # (B, Hk, N, D)
    v: Tensor  # (B, Hk, N, Dv)
    key_mask: Tensor | None  # (B, N) bool, True where a key counts
    cu_seqlens: Tensor | None  # (S + 1,) int64, boundaries of packed sequences; then B = 1
    block_size: int
    scale: float
    is_causal: bool
